// kernels/decode_attention.h: attention of a few queries, whose time is that of reading K,V once.
//
// The keys are cut into segments at multiples of kKeySegment, which any threads may take; their
// results are then joined in ascending order. So a query's bits depend on its own position and the
// keys that it sees: not on the other queries, and not on the number of threads.
//
//   shapes   outermost first
//   threads  pure; a scratch belongs to one thread
#pragma once

#include "kernels/attention.h"

namespace headstart::kernels {

inline constexpr uint32_t kKeySegment = 1024;

// What one segment gives each row (query, head of the group): [n_row, d_head_v + 2], the weighted
// sum of values, then the highest score and the sum of weights.
inline size_t segment_values(const Attention& a) {
  return a.positions.size() * a.n_group * (size_t{a.d_head_v} + 2);
}

// Segments [first, end) that the queries see.
struct SegmentRange {
  uint32_t first;
  uint32_t end;
};
SegmentRange segments(const Attention& a);

// `a.out` is not used.
void attend_segment(const Attention& a, uint32_t segment, float* part, AttentionScratch& scratch);

// parts: of all segments, [n_segment, segment_values]. out: [n_query][n_group, d_head_v],
// out_stride floats from query to query.
void join_segments(const Attention& a, uint32_t n_segment, const float* parts, float* out,
                   size_t out_stride);

}  // namespace headstart::kernels
