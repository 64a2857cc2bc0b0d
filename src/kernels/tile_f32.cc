// The tile with f32 operands, one source for every instruction set.
#include "kernels/tile_f32.h"

#include <algorithm>
#include <cstring>

#include "kernels/row_blocks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/tile_f32.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace headstart::kernels {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::CappedTag<float, kColumnPad>;
using V = hn::VFromD<D>;
constexpr size_t kLanes = hn::MaxLanes(D());

// Accumulators fill the register file but for the panel's vectors and one broadcast value: 6 × 4 of
// 32 registers, 6 × 2 of 16.
#if HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM_A64 || HWY_TARGET == HWY_SCALAR
constexpr size_t kVectors = 4;
#else
constexpr size_t kVectors = 2;
#endif
constexpr size_t kRows = 6;
constexpr size_t kSubColumns = kVectors * kLanes;

const float* as_f32(const std::byte* p) { return reinterpret_cast<const float*>(p); }
float* as_f32(std::byte* p) { return reinterpret_cast<float*>(p); }

template <size_t kM, size_t kN>
struct Block {
  // One sub-panel times kM rows: the whole depth in registers.
  static void multiply(const TileProduct& t, size_t row, size_t column, const float* b) {
    const D d;
    V acc[kM][kN];
    const float* a[kM];
#pragma GCC unroll 6
    for (size_t r = 0; r < kM; ++r) {
      a[r] = as_f32(t.a + (row + r) * t.a_stride);
#pragma GCC unroll 4
      for (size_t j = 0; j < kN; ++j) {
        acc[r][j] =
            t.partial == nullptr
                ? hn::Zero(d)
                : hn::LoadU(d, t.partial + (row + r) * t.partial_stride + column + j * kLanes);
      }
    }
    for (size_t k = 0; k < t.k; ++k, b += kN * kLanes) {
      V bv[kN];
#pragma GCC unroll 4
      for (size_t j = 0; j < kN; ++j) bv[j] = hn::LoadU(d, b + j * kLanes);
#pragma GCC unroll 6
      for (size_t r = 0; r < kM; ++r) {
        const V av = hn::Set(d, a[r][k]);
#pragma GCC unroll 4
        for (size_t j = 0; j < kN; ++j) acc[r][j] = hn::MulAdd(av, bv[j], acc[r][j]);
      }
    }
#pragma GCC unroll 6
    for (size_t r = 0; r < kM; ++r) {
      float* c = t.c + (row + r) * t.c_stride + column;
#pragma GCC unroll 4
      for (size_t j = 0; j < kN; ++j) {
        const V sum = t.add ? hn::Add(hn::LoadU(d, c + j * kLanes), acc[r][j]) : acc[r][j];
        hn::StoreU(sum, d, c + j * kLanes);
      }
    }
  }
};

// The same rows times all sub-panels: the rows stay in the level-1 cache meanwhile.
template <size_t kM>
void multiply_rows(const TileProduct& t, size_t row) {
  for (size_t column = 0; column < t.n_col; column += kSubColumns) {
    const float* b = as_f32(t.panel) + column * t.k_packed;
    switch (std::min(kSubColumns, t.n_col - column) / kLanes) {
      case 1: Block<kM, 1>::multiply(t, row, column, b); break;
      case 2: Block<kM, 2>::multiply(t, row, column, b); break;
      case 3: Block<kM, std::min<size_t>(3, kVectors)>::multiply(t, row, column, b); break;
      default: Block<kM, kVectors>::multiply(t, row, column, b); break;
    }
  }
}

void Multiply(const TileProduct& t) {
  for_row_blocks<kRows>(t.m, [&]<size_t kM>(size_t row) { multiply_rows<kM>(t, row); });
}

// Where column `column` of row 0 lies, and how far the next row is.
struct PanelColumn {
  float* at;
  size_t row_stride;
};
PanelColumn panel_column(std::byte* panel, size_t k, size_t n_col, size_t column) {
  const size_t sub = column / kSubColumns * kSubColumns;
  return {as_f32(panel) + sub * k + (column - sub), std::min(kSubColumns, n_col - sub)};
}

void PackWeights(const StripRows& rows, size_t k, size_t column_first, size_t n_col,
                 std::byte* panel) {
  if constexpr (kSubColumns >= kStrip) {
    const PanelColumn to = panel_column(panel, k, n_col, column_first);
    dequantize_strip(rows, k, to.at, to.row_stride);
  } else {
    alignas(64) float strip[kStripPiece * kStrip];
    for (size_t done = 0; done < k; done += kStripPiece) {
      const size_t n = std::min(kStripPiece, k - done);
      dequantize_strip(rows.from(done), n, strip, kStrip);
      for (size_t c = 0; c < kStrip; c += kSubColumns) {
        const PanelColumn to = panel_column(panel, k, n_col, column_first + c);
        for (size_t i = 0; i < n; ++i) {
          std::copy_n(strip + i * kStrip + c, kSubColumns, to.at + (done + i) * to.row_stride);
        }
      }
    }
  }
}

void Pack(const float* rows, size_t row_stride, size_t k, size_t n_col, std::byte* panel) {
  for (size_t column = 0; column < n_col; column += kSubColumns) {
    const PanelColumn to = panel_column(panel, k, n_col, column);
    for (size_t i = 0; i < k; ++i) {
      std::memcpy(to.at + i * to.row_stride, rows + i * row_stride + column,
                  to.row_stride * sizeof(float));
    }
  }
}

size_t PanelBytes(size_t k, size_t n_col) { return k * n_col * sizeof(float); }

void ToOperand(const float* in, size_t n, std::byte* out) {
  std::memcpy(out, in, n * sizeof(float));
}

}  // namespace

const TileOps* Ops() {
  static const TileOps ops = {{hwy::TargetName(HWY_TARGET),
                               {1, sizeof(float)},
                               kRows,
                               ToOperand,
                               PanelBytes,
                               PackWeights,
                               Multiply},
                              Pack};
  return &ops;
}

}  // namespace HWY_NAMESPACE
}  // namespace headstart::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headstart::kernels {
HWY_EXPORT(Ops);
const TileOps& tile_ops_f32() { return *HWY_DYNAMIC_DISPATCH(Ops)(); }
}  // namespace headstart::kernels
#endif  // HWY_ONCE
