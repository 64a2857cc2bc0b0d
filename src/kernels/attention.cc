#include "kernels/attention.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

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

// The keys that one query sees in a step, as columns of its scores.
struct Visible {
  uint32_t begin;
  uint32_t end;
};

// What the rows of one step have in common.
struct Step {
  uint32_t key_first;  // a multiple of kKeyStep
  uint32_t n_key;      // packed
};

Visible visible(const Attention& a, const Step& step, uint32_t position, uint32_t n_col) {
  const uint32_t first =
      a.n_window != 0 && position + 1 > a.n_window ? position + 1 - a.n_window : 0;
  const uint32_t begin = first > step.key_first ? first - step.key_first : 0;
  const uint32_t end = position + 1 > step.key_first ? position + 1 - step.key_first : 0;
  return {std::min(begin, n_col), std::min(end, n_col)};
}

// Scores [n_col] become weights 2^(score - max); returns their total and raises *max.
float Softmax(const Attention& a, Visible seen, uint32_t n_col, float* scores, float* max) {
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

void Multiply(float factor, size_t n, float* x) {
  const D d;
  for (size_t i = 0; i < n; i += hn::Lanes(d)) {
    hn::StoreU(hn::Mul(hn::LoadU(d, x + i), hn::Set(d, factor)), d, x + i);
  }
}

float Exp2(float x) {
  const hn::CappedTag<float, 1> d;
  return hn::GetLane(exp2_of(d, hn::Set(d, x)));
}

class Attender {
 public:
  Attender(const TileOps& ops, const Attention& attention, AttentionScratch& scratch)
      : ops_(ops),
        a_(attention),
        n_row_(attention.positions.size() * attention.n_group),
        query_bytes_(a_.d_head_k * ops.operand_bytes),
        strip_(scratch.strip.get(kStrip * (a_.d_head_k + kStrip))),
        values_(scratch.values.get(size_t{kKeyStep} * a_.d_head_v)),
        scores_(scratch.scores.get(ops.n_row * kKeyStep)),
        sums_(scratch.sums.get(n_row_ * a_.d_head_v)),
        max_(scratch.max_and_total.get(2 * n_row_)),
        total_(max_ + n_row_),
        query_f32_(scratch.queries_f32.get(a_.d_head_k)),
        queries_(scratch.queries.get(n_row_ * query_bytes_)),
        key_panel_(scratch.key_panel.get(size_t{kKeyStep} * query_bytes_)),
        value_panel_(scratch.value_panel.get(size_t{kKeyStep} * a_.d_head_v * ops.operand_bytes)),
        weights_(scratch.weights.get(ops.n_row * kKeyStep * ops.operand_bytes)) {}

  void run() {
    pack_queries();
    std::fill_n(sums_, n_row_ * a_.d_head_v, 0.0f);
    std::fill_n(max_, n_row_, kFloor);
    std::fill_n(total_, n_row_, 0.0f);
    const uint32_t key_end = a_.positions.back() + 1;
    for (uint32_t key = first_key() / kKeyStep * kKeyStep; key < key_end; key += kKeyStep) {
      const Step step{key, std::min(kKeyStep, key_end - key)};
      pack_step(step);
      for (size_t row = 0; row < n_row_; row += ops_.n_row) {
        tile(step, row, std::min(ops_.n_row, n_row_ - row));
      }
    }
    finish();
  }

 private:
  uint32_t position(size_t row) const { return a_.positions[row / a_.n_group]; }

  // The first that any query sees; what lies before was perhaps never loaded.
  uint32_t first_key() const {
    const uint32_t lowest = a_.positions.front();
    return a_.n_window != 0 && lowest + 1 > a_.n_window ? lowest + 1 - a_.n_window : 0;
  }

  void pack_queries() {
    const float factor = a_.soft_cap != 0 ? a_.scale : a_.scale * kLog2E;
    for (size_t row = 0; row < n_row_; ++row) {
      const float* q = a_.q + row / a_.n_group * a_.q_stride + row % a_.n_group * a_.d_head_k;
      std::copy_n(q, a_.d_head_k, query_f32_);
      Multiply(factor, a_.d_head_k, query_f32_);
      ops_.to_operand(query_f32_, a_.d_head_k, queries_ + row * query_bytes_);
    }
  }

  void pack_step(const Step& step) {
    const DequantizeRow key = dequantize_row_of(a_.k.type);
    const DequantizeRow value = dequantize_row_of(a_.v.type);
    const uint32_t begin = std::max(first_key(), step.key_first) - step.key_first;
    const size_t stride = a_.d_head_k + kStrip;
    for (uint32_t c = 0; c < kKeyStep; c += kStrip) {
      const uint32_t n_valid = c < step.n_key ? std::min<uint32_t>(kStrip, step.n_key - c) : 0;
      for (uint32_t r = 0; r < n_valid; ++r) {
        const size_t p = step.key_first + c + r;
        if (c + r < begin) {
          std::fill_n(strip_ + r * stride, a_.d_head_k, 0.0f);
          std::fill_n(values_ + (c + r) * a_.d_head_v, a_.d_head_v, 0.0f);
          continue;
        }
        key(a_.k.rows + p * a_.k.row_bytes, a_.d_head_k, strip_ + r * stride);
        value(a_.v.rows + p * a_.v.row_bytes, a_.d_head_v, values_ + (c + r) * a_.d_head_v);
      }
      ops_.pack_transposed(strip_, stride, n_valid, a_.d_head_k, c, kKeyStep, key_panel_);
    }
    std::fill(values_ + size_t{step.n_key} * a_.d_head_v, values_ + size_t{kKeyStep} * a_.d_head_v,
              0.0f);
    ops_.pack(values_, a_.d_head_v, kKeyStep, a_.d_head_v, value_panel_);
  }

  void tile(const Step& step, size_t row, size_t m) {
    // A whole number of the panel's columns that the last row sees; the others see some of them.
    constexpr uint32_t kColumns = 64;
    const uint32_t last = position(row + m - 1);
    if (last < step.key_first) return;
    const uint32_t n_col =
        std::min(kKeyStep, (last - step.key_first) / kColumns * kColumns + kColumns);
    if (visible(a_, step, position(row), n_col).begin == n_col) return;  // windows start later

    TileProduct qk;
    qk.a = queries_ + row * query_bytes_;
    qk.a_stride = query_bytes_;
    qk.m = m;
    qk.panel = key_panel_;
    qk.k = qk.k_packed = a_.d_head_k;
    qk.n_col = n_col;
    qk.c = scores_;
    qk.c_stride = kKeyStep;
    ops_.multiply(qk);

    for (size_t r = 0; r < m; ++r) {
      float* const scores = scores_ + r * kKeyStep;
      float& max = max_[row + r];
      const float max_before = max;
      const Visible seen = visible(a_, step, position(row + r), n_col);
      const float total = Softmax(a_, seen, n_col, scores, &max);
      if (max != max_before) {
        const float shrink = Exp2(max_before - max);
        Multiply(shrink, a_.d_head_v, sums_ + (row + r) * a_.d_head_v);
        total_[row + r] *= shrink;
      }
      total_[row + r] += total;
      ops_.to_operand(scores, n_col, weights_ + r * kKeyStep * ops_.operand_bytes);
    }

    TileProduct wv;
    wv.a = weights_;
    wv.a_stride = kKeyStep * ops_.operand_bytes;
    wv.m = m;
    wv.panel = value_panel_;
    wv.k_packed = kKeyStep;
    wv.k = n_col;
    wv.n_col = a_.d_head_v;
    wv.c = sums_ + row * a_.d_head_v;
    wv.c_stride = a_.d_head_v;
    wv.partial = wv.c;
    wv.partial_stride = wv.c_stride;
    ops_.multiply(wv);
  }

  void finish() {
    for (size_t row = 0; row < n_row_; ++row) {
      float* const sums = sums_ + row * a_.d_head_v;
      Multiply(1.0f / total_[row], a_.d_head_v, sums);
      ops_.to_operand(sums, a_.d_head_v,
                      a_.out + row / a_.n_group * a_.out_stride +
                          row % a_.n_group * a_.d_head_v * ops_.operand_bytes);
    }
  }

  const TileOps& ops_;
  const Attention& a_;
  const size_t n_row_;  // [query, group]
  const size_t query_bytes_;
  float* const strip_;            // [kStrip, d_head_k + kStrip]
  float* const values_;           // [kKeyStep, d_head_v]
  float* const scores_;           // [n_row of a tile, kKeyStep]
  float* const sums_;             // [n_row_, d_head_v]
  float* const max_;              // [n_row_]
  float* const total_;            // [n_row_]
  float* const query_f32_;        // [d_head_k]
  std::byte* const queries_;      // [n_row_, d_head_k]
  std::byte* const key_panel_;    // [d_head_k, kKeyStep]
  std::byte* const value_panel_;  // [kKeyStep, d_head_v]
  std::byte* const weights_;      // [n_row of a tile, kKeyStep]
};

void Attend(const TileOps& ops, const Attention& attention, AttentionScratch& scratch) {
  Attender(ops, attention, scratch).run();
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace headstart::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headstart::kernels {
HWY_EXPORT(Attend);

void attend(const TileOps& ops, const Attention& attention, AttentionScratch& scratch) {
  HWY_DYNAMIC_DISPATCH(Attend)(ops, attention, scratch);
}
}  // namespace headstart::kernels
#endif  // HWY_ONCE
