#include "kernels/matvec.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/matvec_targets.h"
#include "kernels/target.h"

namespace headstart::kernels {
namespace {

struct Targets {
  const MatvecTarget* all[4];
  size_t n = 0;
};

const Targets& targets() {
  static const Targets found = [] {
    Targets t;
    auto add = [&](Target needed, const MatvecTarget* target) {
      if (target != nullptr && target_allowed(needed)) t.all[t.n++] = target;
    };
#if defined(__x86_64__)
    add(Target::kAvx512, avx512vnni_target());
    add(Target::kAvx2, avx2_target());
#elif defined(__aarch64__)
    add(Target::kNeonDotprod, neon_dotprod_target());
    add(Target::kNeon, neon_target());
#endif
    t.all[t.n++] = portable_target();
    return t;
  }();
  return found;
}

}  // namespace

QuantizedColumns::QuantizedColumns() = default;
QuantizedColumns::~QuantizedColumns() = default;
QuantizedColumns::QuantizedColumns(QuantizedColumns&&) noexcept = default;
QuantizedColumns& QuantizedColumns::operator=(QuantizedColumns&&) noexcept = default;

float QuantizedColumns::value(uint32_t col, size_t i) const {
  const ColumnGroup& group = groups_[col * n_group_ + i / kGroup];
  const size_t block = i % kGroup / kBlock, v = i % kBlock;
  const size_t at = target_->order == ValueOrder::kPlain
                        ? i % kGroup
                        : v / 4 * 4 * kGroupBlocks + 4 * block + v % 4;
  return group.d[block] * static_cast<float>(group.q[at]);
}

void quantize_columns(const float* x, size_t x_stride, uint32_t n_col, size_t n_value,
                      QuantizedColumns& out, const MatvecTarget& target) {
  HS_CHECK(n_col >= 1 && n_col <= kMaxColumns, "number of columns");
  out.n_col_ = n_col;
  out.n_value_ = n_value;
  out.n_group_ = (n_value + kGroup - 1) / kGroup;
  out.target_ = &target;
  if (out.groups_.size() < n_col * out.n_group_) out.groups_.resize(n_col * out.n_group_);
  if (out.floats_.size() < n_col * n_value) out.floats_.resize(n_col * n_value);
  for (uint32_t c = 0; c < n_col; ++c) {
    target.quantize(x + c * x_stride, n_value, out.groups_.data() + c * out.n_group_);
    std::copy_n(x + c * x_stride, n_value, out.floats_.data() + c * n_value);
  }
}

void quantize_columns(const float* x, size_t x_stride, uint32_t n_col, size_t n_value,
                      QuantizedColumns& out) {
  quantize_columns(x, x_stride, n_col, n_value, out, *targets().all[0]);
}

void matvec(const WeightMatrix& w, uint32_t row_first, uint32_t row_end, const QuantizedColumns& x,
            float* y, size_t y_stride) {
  HS_CHECK(w.n_col == x.n_value() && w.n_col % block_of(w.type).n_value == 0,
           "matrix and columns differ in length");
  HS_CHECK(x.n_col_ > 0, "columns not quantised");
  HS_CHECK(row_first <= row_end && row_end <= w.n_row, "rows outside the matrix");
  ColumnsView view = {};
  view.n_col = x.n_col_;
  for (uint32_t c = 0; c < kMaxColumns; ++c) {
    const size_t from = std::min(c, x.n_col_ - 1);
    view.groups[c] = x.groups_.data() + from * x.n_group_;
    view.floats[c] = x.floats_.data() + from * x.n_value_;
  }
  x.target_->matvec(w, row_first, row_end, view, y, y_stride);
}

const char* matvec_target_name() { return targets().all[0]->name; }

std::span<const MatvecTarget* const> matvec_targets() { return {targets().all, targets().n}; }

const char* name_of(const MatvecTarget& target) { return target.name; }

}  // namespace headstart::kernels
