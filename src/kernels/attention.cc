#include "kernels/attention.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/attention-inl.h"

HWY_BEFORE_NAMESPACE();
namespace headstart::kernels {
namespace HWY_NAMESPACE {
namespace {

class Attender {
 public:
  Attender(const TileOps& ops, const Attention& attention, AttentionScratch& scratch)
      : ops_(ops),
        a_(attention),
        n_row_(attention.positions.size() * attention.n_group),
        query_bytes_(ops.operand_bytes(a_.d_head_k)),
        values_(scratch.values.get(size_t{kKeyStep} * a_.d_head_v)),
        scores_(scratch.scores.get(ops.n_row * kKeyStep)),
        sums_(scratch.sums.get(n_row_ * a_.d_head_v)),
        max_(scratch.max_and_total.get(2 * n_row_)),
        total_(max_ + n_row_),
        query_f32_(scratch.queries_f32.get(a_.d_head_k)),
        queries_(scratch.queries.get(n_row_ * query_bytes_)),
        key_panel_(scratch.key_panel.get(size_t{kKeyStep} * query_bytes_)),
        value_panel_(scratch.value_panel.get(ops.panel_bytes(kKeyStep, a_.d_head_v))),
        weights_(scratch.weights.get(ops.n_row * ops.operand_bytes(kKeyStep))) {}

  void run() {
    pack_queries();
    std::fill_n(sums_, n_row_ * a_.d_head_v, 0.0f);
    std::fill_n(max_, n_row_, kFloor);
    std::fill_n(total_, n_row_, 0.0f);
    const uint32_t key_end = a_.positions.back() + 1;
    for (uint32_t key = FirstKey(a_) / kKeyStep * kKeyStep; key < key_end; key += kKeyStep) {
      const PackedKeys step{key, kKeyStep, FirstKey(a_), key_end};
      PackKeys(ops_, a_, step, key_panel_);
      PackValues(ops_, a_, step, values_, value_panel_);
      for (size_t row = 0; row < n_row_; row += ops_.n_row) {
        tile(step, row, std::min(ops_.n_row, n_row_ - row));
      }
    }
    finish();
  }

 private:
  uint32_t position(size_t row) const { return a_.positions[row / a_.n_group]; }

  void pack_queries() {
    for (size_t row = 0; row < n_row_; ++row) {
      PackQuery(ops_, a_, row, query_f32_, queries_ + row * query_bytes_);
    }
  }

  void tile(const PackedKeys& step, size_t row, size_t m) {
    // A whole number of the panel's columns that the last row sees; the others see some of them.
    constexpr uint32_t kColumns = 64;
    const uint32_t last = position(row + m - 1);
    if (last < step.first) return;
    const uint32_t n_col = std::min(kKeyStep, (last - step.first) / kColumns * kColumns + kColumns);
    if (Seen(a_, step.first, position(row), n_col).begin == n_col) return;  // windows start later

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
      const Visible seen = Seen(a_, step.first, position(row + r), n_col);
      Absorb(a_, seen, n_col, scores, &max_[row + r], &total_[row + r],
             sums_ + (row + r) * a_.d_head_v);
      ops_.to_operand(scores, n_col, weights_ + r * ops_.operand_bytes(kKeyStep));
    }

    TileProduct wv;
    wv.a = weights_;
    wv.a_stride = ops_.operand_bytes(kKeyStep);
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
      GiveRow(ops_, a_, row, total_[row], sums_ + row * a_.d_head_v);
    }
  }

  const TileOps& ops_;
  const Attention& a_;
  const size_t n_row_;  // [query, group]
  const size_t query_bytes_;
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
