// kernels/attention.h: softmax(scale · q kᵀ) v over the live cache, with a running maximum.
//
// All query heads of a kv head go together: they are rows of the same tiles. Keys are taken in
// steps that start at multiples of kKeyStep, so a query's bits depend on its own position and the
// keys that it sees, not on the other queries of the call. K,V before the first key that any query
// sees are not read; from there to the last position they must be finite, seen or not, because a
// weight of 0 times infinity is no 0.
//
//   shapes   outermost first
//   threads  pure; a scratch belongs to one thread
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/dequant.h"
#include "kernels/scratch.h"
#include "kernels/tile.h"

namespace headstart::kernels {

inline constexpr uint32_t kKeyStep = 256;

// K or V of one kv head: position p's values at rows + p * row_bytes.
struct KvRows {
  WeightType type = WeightType::kF16;  // kF16 or kQ8_0
  const std::byte* rows = nullptr;
  size_t row_bytes = 0;
};

// Queries of one kv head's group, some or all of a batch's.
struct Attention {
  uint32_t n_group = 1;  // query heads of this kv head
  uint32_t d_head_k = 0;
  uint32_t d_head_v = 0;  // both multiples of kColumnPad
  uint32_t n_window = 0;  // a query sees its own and n_window - 1 positions before; 0: all
  float scale = 1;
  float soft_cap = 0;  // of scale · q · k; 0: none
  KvRows k;
  KvRows v;
  std::span<const uint32_t> positions;  // [n_query], ascending
  const float* q = nullptr;             // [n_query][n_group, d_head_k], rotated
  size_t q_stride = 0;                  // floats from query to query
  std::byte* out = nullptr;             // [n_query][n_group, d_head_v] operands
  size_t out_stride = 0;                // bytes from query to query
  const PanelOps* out_ops = nullptr;    // whose operands `out` takes; null: the tile's
};

class AttentionScratch {
 public:
  Scratch<float> queries_f32, keys, values, scores, sums, max_and_total;
  Scratch<std::byte> queries, key_panel, value_panel, weights;
};

void attend(const TileOps& ops, const Attention& attention, AttentionScratch& scratch);

}  // namespace headstart::kernels
