#include "kernels/decode_attention.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/decode_attention.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/attention-inl.h"

HWY_BEFORE_NAMESPACE();
namespace headstart::kernels {
namespace HWY_NAMESPACE {
namespace {

// Keys whose scores are taken together; K,V of a block stay in the level-1 cache for all rows.
constexpr uint32_t kScoreKeys = 64;
// Rows that share each load of K or V.
constexpr size_t kRows = 4;
// Vectors of values that are summed over a block's keys in registers, for each of kRows rows.
constexpr size_t kVectors = 4;

// K or V of one block of keys, [n_key][d] f16 in place, or f32 in scratch.
template <class T>
struct Rows {
  const std::byte* first;
  size_t row_bytes;
  const T* row(size_t key) const { return reinterpret_cast<const T*>(first + key * row_bytes); }
};

V load(const float* p) { return hn::LoadU(D(), p); }
V load(const hwy::float16_t* p) {
  return hn::PromoteTo(D(), hn::LoadU(hn::Rebind<hwy::float16_t, D>(), p));
}

// scores[r][key] = q[r] · k[key]
template <size_t kR, class T>
void Score(const Rows<T>& k, size_t n_key, size_t d_head, const float* q, float* scores) {
  const D d;
  for (size_t key = 0; key < n_key; ++key) {
    const T* row = k.row(key);
    V sum[kR];
    for (size_t r = 0; r < kR; ++r) sum[r] = hn::Zero(d);
    for (size_t j = 0; j < d_head; j += hn::Lanes(d)) {
      const V kv = load(row + j);
      for (size_t r = 0; r < kR; ++r) {
        sum[r] = hn::MulAdd(hn::LoadU(d, q + r * d_head + j), kv, sum[r]);
      }
    }
    for (size_t r = 0; r < kR; ++r) {
      scores[r * kScoreKeys + key] = hn::GetLane(hn::SumOfLanes(d, sum[r]));
    }
  }
}

// sums[r][j] += weight[r][key] * v[key][j] for kN vectors of j
template <size_t kR, size_t kN, class T>
void Accumulate(const Rows<T>& v, size_t n_key, const float* weights, size_t at, float* sums,
                size_t sums_stride) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  V acc[kR][kN];
#pragma GCC unroll 4
  for (size_t r = 0; r < kR; ++r) {
#pragma GCC unroll 4
    for (size_t j = 0; j < kN; ++j)
      acc[r][j] = hn::LoadU(d, sums + r * sums_stride + at + j * lanes);
  }
  for (size_t key = 0; key < n_key; ++key) {
    const T* row = v.row(key) + at;
    V value[kN];
#pragma GCC unroll 4
    for (size_t j = 0; j < kN; ++j) value[j] = load(row + j * lanes);
#pragma GCC unroll 4
    for (size_t r = 0; r < kR; ++r) {
      const V w = hn::Set(d, weights[r * kScoreKeys + key]);
#pragma GCC unroll 4
      for (size_t j = 0; j < kN; ++j) acc[r][j] = hn::MulAdd(w, value[j], acc[r][j]);
    }
  }
#pragma GCC unroll 4
  for (size_t r = 0; r < kR; ++r) {
#pragma GCC unroll 4
    for (size_t j = 0; j < kN; ++j)
      hn::StoreU(acc[r][j], d, sums + r * sums_stride + at + j * lanes);
  }
}

class SegmentAttender {
 public:
  SegmentAttender(const Attention& attention, float* part, AttentionScratch& scratch)
      : a_(attention),
        n_row_(attention.positions.size() * attention.n_group),
        stride_(size_t{a_.d_head_v} + 2),
        part_(part),
        queries_(scratch.queries_f32.get(n_row_ * a_.d_head_k)),
        scores_(scratch.scores.get(kRows * kScoreKeys)),
        keys_f32_(scratch.keys.get(size_t{kScoreKeys} * a_.d_head_k)),
        values_f32_(scratch.values.get(size_t{kScoreKeys} * a_.d_head_v)) {}

  void run(uint32_t segment) {
    for (size_t row = 0; row < n_row_; ++row) {
      ScaledQuery(a_, row, queries_ + row * a_.d_head_k);
      std::fill_n(part_ + row * stride_, stride_, 0.0f);
      max(row) = kFloor;
    }
    const uint32_t segment_end = std::min((segment + 1) * kKeySegment, a_.positions.back() + 1);
    const uint32_t first = std::max(segment * kKeySegment, FirstKey(a_));
    for (uint32_t key = first / kScoreKeys * kScoreKeys; key < segment_end; key += kScoreKeys) {
      const uint32_t begin = std::max(key, first);  // what lies before was perhaps never loaded
      block(key, begin, std::min(key + kScoreKeys, segment_end));
    }
  }

 private:
  float& max(size_t row) { return part_[row * stride_ + a_.d_head_v]; }
  float& total(size_t row) { return part_[row * stride_ + a_.d_head_v + 1]; }

  // Keys [begin, end) of the block that starts at `key`.
  void block(uint32_t key, uint32_t begin, uint32_t end) {
    if (a_.k.type == WeightType::kF16 && a_.v.type == WeightType::kF16) {
      rows_of_block(key, begin, end, in_place(a_.k, begin), in_place(a_.v, begin));
      return;
    }
    rows_of_block(key, begin, end, in_scratch(a_.k, begin, end, a_.d_head_k, keys_f32_),
                  in_scratch(a_.v, begin, end, a_.d_head_v, values_f32_));
  }

  static Rows<hwy::float16_t> in_place(const KvRows& rows, uint32_t begin) {
    return {rows.rows + begin * rows.row_bytes, rows.row_bytes};
  }
  static Rows<float> in_scratch(const KvRows& rows, uint32_t begin, uint32_t end, size_t d_head,
                                float* scratch) {
    const DequantizeRow dequantize = dequantize_row_of(rows.type);
    for (uint32_t p = begin; p < end; ++p) {
      dequantize(rows.rows + p * rows.row_bytes, d_head, scratch + (p - begin) * d_head);
    }
    return {reinterpret_cast<const std::byte*>(scratch), d_head * sizeof(float)};
  }

  template <class T>
  void rows_of_block(uint32_t key, uint32_t begin, uint32_t end, Rows<T> k, Rows<T> v) {
    size_t row = 0;
    for (; row + kRows <= n_row_; row += kRows) some_rows<kRows>(row, key, begin, end, k, v);
    switch (n_row_ - row) {
      case 1: return some_rows<1>(row, key, begin, end, k, v);
      case 2: return some_rows<2>(row, key, begin, end, k, v);
      case 3: return some_rows<3>(row, key, begin, end, k, v);
      default: return;
    }
  }

  // Scores lie at their key's place within the block, so that the softmax sums them in the same
  // order wherever the window begins.
  template <size_t kR, class T>
  void some_rows(size_t row, uint32_t key, uint32_t begin, uint32_t end, Rows<T> k, Rows<T> v) {
    const D d;
    const size_t skip = begin - key, n_key = end - begin;
    std::fill_n(scores_, kR * kScoreKeys, 0.0f);
    Score<kR>(k, n_key, a_.d_head_k, queries_ + row * a_.d_head_k, scores_ + skip);
    for (size_t r = 0; r < kR; ++r) {
      const uint32_t position = a_.positions[(row + r) / a_.n_group];
      const float max_before = max(row + r);
      const float weight = Softmax(a_, Seen(a_, key, position, kScoreKeys), kScoreKeys,
                                   scores_ + r * kScoreKeys, &max(row + r));
      const float shrink = Exp2(max_before - max(row + r));
      if (shrink != 1.0f) Multiply(shrink, a_.d_head_v, part_ + (row + r) * stride_);
      total(row + r) = total(row + r) * shrink + weight;
    }
    const size_t step = kVectors * hn::Lanes(d);
    size_t at = 0;
    float* const sums = part_ + row * stride_;
    for (; at + step <= a_.d_head_v; at += step) {
      Accumulate<kR, kVectors>(v, n_key, scores_ + skip, at, sums, stride_);
    }
    for (; at < a_.d_head_v; at += hn::Lanes(d)) {
      Accumulate<kR, 1>(v, n_key, scores_ + skip, at, sums, stride_);
    }
  }

  const Attention& a_;
  const size_t n_row_;
  const size_t stride_;      // of part_, floats
  float* const part_;        // [n_row_, d_head_v + 2]
  float* const queries_;     // [n_row_, d_head_k]
  float* const scores_;      // [kRows, kScoreKeys]
  float* const keys_f32_;    // [kScoreKeys, d_head_k]
  float* const values_f32_;  // [kScoreKeys, d_head_v]
};

void AttendSegment(const Attention& a, uint32_t segment, float* part, AttentionScratch& scratch) {
  SegmentAttender(a, part, scratch).run(segment);
}

void JoinRow(const float* parts, size_t n_segment, size_t segment_stride, size_t d_head,
             float* out) {
  const D d;
  float max = kFloor;
  for (size_t s = 0; s < n_segment; ++s) max = std::max(max, parts[s * segment_stride + d_head]);
  float total = 0;
  std::fill_n(out, d_head, 0.0f);
  for (size_t s = 0; s < n_segment; ++s) {
    const float* part = parts + s * segment_stride;
    const float share = Exp2(part[d_head] - max);
    total += share * part[d_head + 1];
    for (size_t j = 0; j < d_head; j += hn::Lanes(d)) {
      hn::StoreU(hn::MulAdd(hn::Set(d, share), hn::LoadU(d, part + j), hn::LoadU(d, out + j)), d,
                 out + j);
    }
  }
  Multiply(1.0f / total, d_head, out);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace headstart::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headstart::kernels {
HWY_EXPORT(AttendSegment);
HWY_EXPORT(JoinRow);

SegmentRange segments(const Attention& a) {
  const uint32_t lowest = a.positions.front();
  const uint32_t first = a.n_window != 0 && lowest + 1 > a.n_window ? lowest + 1 - a.n_window : 0;
  return {first / kKeySegment, a.positions.back() / kKeySegment + 1};
}

void attend_segment(const Attention& a, uint32_t segment, float* part, AttentionScratch& scratch) {
  HWY_DYNAMIC_DISPATCH(AttendSegment)(a, segment, part, scratch);
}

void join_segments(const Attention& a, uint32_t n_segment, const float* parts, float* out,
                   size_t out_stride) {
  const size_t n_row = a.positions.size() * a.n_group, row_values = size_t{a.d_head_v} + 2;
  for (size_t row = 0; row < n_row; ++row) {
    HWY_DYNAMIC_DISPATCH(JoinRow)
    (parts + row * row_values, n_segment, segment_values(a), a.d_head_v,
     out + row / a.n_group * out_stride + row % a.n_group * a.d_head_v);
  }
}

}  // namespace headstart::kernels
#endif  // HWY_ONCE
