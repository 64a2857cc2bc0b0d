// What the attention kernels share: softmax and packing, for sources that Highway compiles once for
// each instruction set.
#if defined(HEADSTART_KERNELS_ATTENTION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADSTART_KERNELS_ATTENTION_INL_H_
#undef HEADSTART_KERNELS_ATTENTION_INL_H_
#else
#define HEADSTART_KERNELS_ATTENTION_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>

#include "kernels/attention.h"
#include "kernels/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace headstart::kernels {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::CappedTag<float, kColumnPad>;
using V = hn::VFromD<D>;

// Below every score, yet finite: the difference of two is a number.
constexpr float kFloor = -1e30f;

// The keys that one query sees of some, as columns of its scores.
struct Visible {
  uint32_t begin;
  uint32_t end;
};

// The first key that a query at this position sees.
inline uint32_t WindowBegin(const Attention& a, uint32_t position) {
  return a.n_window != 0 && position + 1 > a.n_window ? position + 1 - a.n_window : 0;
}

// The first that any query sees; what lies before was perhaps never loaded.
inline uint32_t FirstKey(const Attention& a) { return WindowBegin(a, a.positions.front()); }

// Of the keys [key_first, key_first + n_col).
inline Visible Seen(const Attention& a, uint32_t key_first, uint32_t position, uint32_t n_col) {
  const uint32_t first = WindowBegin(a, position);
  const uint32_t begin = first > key_first ? first - key_first : 0;
  const uint32_t end = position + 1 > key_first ? position + 1 - key_first : 0;
  return {std::min(begin, n_col), std::min(end, n_col)};
}

// Scores [n_col] become weights 2^(score - max); returns their total and raises *max.
inline float Softmax(const Attention& a, Visible seen, uint32_t n_col, float* scores, float* max) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  const V hidden = hn::Set(d, 2 * kFloor);
  const bool all = seen.begin == 0 && seen.end == n_col;
  const V lane = hn::Iota(d, 0);
  V highest = hn::Set(d, *max);
  for (size_t i = 0; i < n_col; i += lanes) {
    V s = hn::LoadU(d, scores + i);
    if (a.soft_cap != 0) {
      s = hn::Mul(tanh_of(d, hn::Mul(s, hn::Set(d, 1 / a.soft_cap))),
                  hn::Set(d, a.soft_cap * kLog2E));
    }
    if (!all) {
      const V at = hn::Add(lane, hn::Set(d, static_cast<float>(i)));
      const auto in = hn::And(hn::Ge(at, hn::Set(d, static_cast<float>(seen.begin))),
                              hn::Lt(at, hn::Set(d, static_cast<float>(seen.end))));
      s = hn::IfThenElse(in, s, hidden);
    }
    if (!all || a.soft_cap != 0) hn::StoreU(s, d, scores + i);
    highest = hn::Max(highest, s);
  }
  *max = hn::GetLane(hn::MaxOfLanes(d, highest));
  const V top = hn::Set(d, *max);
  V total = hn::Zero(d);
  for (size_t i = 0; i < n_col; i += lanes) {
    const V w = exp2_of(d, hn::Sub(hn::LoadU(d, scores + i), top));
    hn::StoreU(w, d, scores + i);
    total = hn::Add(total, w);
  }
  return hn::GetLane(hn::SumOfLanes(d, total));
}

inline void Multiply(float factor, size_t n, float* x) {
  const D d;
  for (size_t i = 0; i < n; i += hn::Lanes(d)) {
    hn::StoreU(hn::Mul(hn::LoadU(d, x + i), hn::Set(d, factor)), d, x + i);
  }
}

inline float Exp2(float x) {
  const hn::CappedTag<float, 1> d;
  return hn::GetLane(exp2_of(d, hn::Set(d, x)));
}

// One more step of a row's running softmax: its scores [n_col] become weights, and what was summed
// before them shrinks to the new maximum.
inline void Absorb(const Attention& a, Visible seen, uint32_t n_col, float* scores, float* max,
                   float* total, float* sums) {
  const float max_before = *max;
  const float total_here = Softmax(a, seen, n_col, scores, max);
  if (*max != max_before) {
    const float shrink = Exp2(max_before - *max);
    Multiply(shrink, a.d_head_v, sums);
    *total *= shrink;
  }
  *total += total_here;
}

// Row (query, head of the group) of the queries, scaled so that scores are powers of two.
inline void ScaledQuery(const Attention& a, size_t row, float* out) {
  const float* q = a.q + row / a.n_group * a.q_stride + row % a.n_group * a.d_head_k;
  std::copy_n(q, a.d_head_k, out);
  Multiply(a.soft_cap != 0 ? a.scale : a.scale * kLog2E, a.d_head_k, out);
}

// Keys [first, first + n) as panels: those of [begin, end), the others zero and not read.
struct PackedKeys {
  uint32_t first;
  uint32_t n;  // a multiple of kStrip
  uint32_t begin;
  uint32_t end;
  // Within the panel.
  uint32_t first_valid() const { return std::clamp(begin, first, first + n) - first; }
  uint32_t end_valid() const { return std::clamp(end, first, first + n) - first; }
};

// panel: [d_head_k, keys.n]
inline void PackKeys(const TileOps& ops, const Attention& a, const PackedKeys& keys,
                     std::byte* panel) {
  const size_t begin = keys.first_valid(), end = keys.end_valid();
  for (size_t c = 0; c < keys.n; c += kStrip) {
    StripRows rows{a.k.type, a.k.rows + (keys.first + c) * a.k.row_bytes, a.k.row_bytes};
    rows.begin = c < begin ? std::min(kStrip, begin - c) : 0;
    rows.end = c < end ? std::min(kStrip, end - c) : 0;
    rows.next = static_cast<std::ptrdiff_t>(kStrip * a.k.row_bytes);
    ops.pack_weights(rows, a.d_head_k, c, keys.n, panel);
  }
}

// panel: [keys.n, d_head_v]; `values` is as large.
inline void PackValues(const TileOps& ops, const Attention& a, const PackedKeys& keys,
                       float* values, std::byte* panel) {
  const DequantizeRow dequantize = dequantize_row_of(a.v.type);
  const size_t begin = keys.first_valid(), end = keys.end_valid();
  std::fill_n(values, begin * a.d_head_v, 0.0f);
  for (size_t i = begin; i < end; ++i) {
    dequantize(a.v.rows + (keys.first + i) * a.v.row_bytes, a.d_head_v, values + i * a.d_head_v);
  }
  std::fill(values + end * a.d_head_v, values + size_t{keys.n} * a.d_head_v, 0.0f);
  ops.pack(values, a.d_head_v, keys.n, a.d_head_v, panel);
}

// Row (query, head of the group) as operands; f32 is scratch of d_head_k.
inline void PackQuery(const TileOps& ops, const Attention& a, size_t row, float* f32,
                      std::byte* out) {
  ScaledQuery(a, row, f32);
  ops.to_operand(f32, a.d_head_k, out);
}

// The row's share of a.out, from the sums of its weighted values and the total of its weights.
inline void GiveRow(const TileOps& ops, const Attention& a, size_t row, float total, float* sums) {
  Multiply(1.0f / total, a.d_head_v, sums);
  const PanelOps& out_ops = a.out_ops != nullptr ? *a.out_ops : ops;
  out_ops.to_operand(
      sums, a.d_head_v,
      a.out + row / a.n_group * a.out_stride + row % a.n_group * out_ops.operand_bytes(a.d_head_v));
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace headstart::kernels
HWY_AFTER_NAMESPACE();

#endif
