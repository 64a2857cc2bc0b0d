// The tile with f32 operands, one source for every instruction set.
#include "kernels/tile_f32.h"

#include <algorithm>
#include <cstring>

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
    for (size_t r = 0; r < kM; ++r) {
      a[r] = as_f32(t.a + (row + r) * t.a_stride);
      for (size_t j = 0; j < kN; ++j) {
        acc[r][j] =
            t.partial == nullptr
                ? hn::Zero(d)
                : hn::LoadU(d, t.partial + (row + r) * t.partial_stride + column + j * kLanes);
      }
    }
    for (size_t k = 0; k < t.k; ++k, b += kN * kLanes) {
      V bv[kN];
      for (size_t j = 0; j < kN; ++j) bv[j] = hn::LoadU(d, b + j * kLanes);
      for (size_t r = 0; r < kM; ++r) {
        const V av = hn::Set(d, a[r][k]);
        for (size_t j = 0; j < kN; ++j) acc[r][j] = hn::MulAdd(av, bv[j], acc[r][j]);
      }
    }
    for (size_t r = 0; r < kM; ++r) {
      float* c = t.c + (row + r) * t.c_stride + column;
      for (size_t j = 0; j < kN; ++j) {
        const V sum = t.add ? hn::Add(hn::LoadU(d, c + j * kLanes), acc[r][j]) : acc[r][j];
        hn::StoreU(sum, d, c + j * kLanes);
      }
    }
  }
};

template <size_t kN>
void multiply_columns(const TileProduct& t, size_t column, const float* b) {
  size_t row = 0;
  for (; row + kRows <= t.m; row += kRows) Block<kRows, kN>::multiply(t, row, column, b);
  switch (t.m - row) {
    case 1: return Block<1, kN>::multiply(t, row, column, b);
    case 2: return Block<2, kN>::multiply(t, row, column, b);
    case 3: return Block<3, kN>::multiply(t, row, column, b);
    case 4: return Block<4, kN>::multiply(t, row, column, b);
    case 5: return Block<5, kN>::multiply(t, row, column, b);
    default: return;
  }
}

void Multiply(const TileProduct& t) {
  for (size_t column = 0; column < t.n_col; column += kSubColumns) {
    const float* b = as_f32(t.panel) + column * t.k_packed;
    switch (std::min(kSubColumns, t.n_col - column) / kLanes) {
      case 1: multiply_columns<1>(t, column, b); break;
      case 2: multiply_columns<2>(t, column, b); break;
      case 3: multiply_columns<std::min<size_t>(3, kVectors)>(t, column, b); break;
      default: multiply_columns<kVectors>(t, column, b); break;
    }
  }
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

// 4 rows of Bᵀ become 4 columns, 4 of k at a time.
void transpose_4(const float* const rows[4], size_t k, PanelColumn to) {
  size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::CappedTag<float, 4> d;
  const hn::Repartition<double, decltype(d)> dd;
  for (; i + 4 <= k; i += 4) {
    const auto r0 = hn::LoadU(d, rows[0] + i), r1 = hn::LoadU(d, rows[1] + i);
    const auto r2 = hn::LoadU(d, rows[2] + i), r3 = hn::LoadU(d, rows[3] + i);
    const auto low01 = hn::BitCast(dd, hn::InterleaveLower(d, r0, r1));
    const auto low23 = hn::BitCast(dd, hn::InterleaveLower(d, r2, r3));
    const auto high01 = hn::BitCast(dd, hn::InterleaveUpper(d, r0, r1));
    const auto high23 = hn::BitCast(dd, hn::InterleaveUpper(d, r2, r3));
    float* out = to.at + i * to.row_stride;
    hn::StoreU(hn::BitCast(d, hn::InterleaveLower(dd, low01, low23)), d, out);
    hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(dd, low01, low23)), d, out + to.row_stride);
    hn::StoreU(hn::BitCast(d, hn::InterleaveLower(dd, high01, high23)), d, out + 2 * to.row_stride);
    hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(dd, high01, high23)), d, out + 3 * to.row_stride);
  }
#endif
  for (; i < k; ++i) {
    for (size_t r = 0; r < 4; ++r) to.at[i * to.row_stride + r] = rows[r][i];
  }
}

#if HWY_TARGET <= HWY_AVX3
// 16 rows of Bᵀ become 16 columns, 16 of k at a time: 4 × 4 within the 128-bit blocks, then 4 × 4
// blocks.
void transpose_16(const float* rows, size_t row_stride, size_t k, PanelColumn to) {
  for (size_t i = 0; i + 16 <= k; i += 16) {
    __m512 r[16], t[16];
    for (size_t j = 0; j < 16; ++j) r[j] = _mm512_loadu_ps(rows + j * row_stride + i);
    for (size_t j = 0; j < 16; j += 4) {
      const __m512d low01 = _mm512_castps_pd(_mm512_unpacklo_ps(r[j], r[j + 1]));
      const __m512d low23 = _mm512_castps_pd(_mm512_unpacklo_ps(r[j + 2], r[j + 3]));
      const __m512d high01 = _mm512_castps_pd(_mm512_unpackhi_ps(r[j], r[j + 1]));
      const __m512d high23 = _mm512_castps_pd(_mm512_unpackhi_ps(r[j + 2], r[j + 3]));
      t[j] = _mm512_castpd_ps(_mm512_unpacklo_pd(low01, low23));
      t[j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low01, low23));
      t[j + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(high01, high23));
      t[j + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(high01, high23));
    }
    for (size_t j = 0; j < 4; ++j) {
      const __m512 even0 = _mm512_shuffle_f32x4(t[j], t[j + 4], 0x88);
      const __m512 odd0 = _mm512_shuffle_f32x4(t[j], t[j + 4], 0xdd);
      const __m512 even1 = _mm512_shuffle_f32x4(t[j + 8], t[j + 12], 0x88);
      const __m512 odd1 = _mm512_shuffle_f32x4(t[j + 8], t[j + 12], 0xdd);
      float* out = to.at + (i + j) * to.row_stride;
      _mm512_storeu_ps(out, _mm512_shuffle_f32x4(even0, even1, 0x88));
      _mm512_storeu_ps(out + 4 * to.row_stride, _mm512_shuffle_f32x4(odd0, odd1, 0x88));
      _mm512_storeu_ps(out + 8 * to.row_stride, _mm512_shuffle_f32x4(even0, even1, 0xdd));
      _mm512_storeu_ps(out + 12 * to.row_stride, _mm512_shuffle_f32x4(odd0, odd1, 0xdd));
    }
  }
}
#endif

void PackTransposed(const float* rows, size_t row_stride, size_t n_valid, size_t k,
                    size_t column_first, size_t n_col, std::byte* panel) {
  size_t done = 0;  // of k
#if HWY_TARGET <= HWY_AVX3
  if (n_valid >= kStrip) {
    done = k / 16 * 16;
    transpose_16(rows, row_stride, k, panel_column(panel, k, n_col, column_first));
  }
#endif
  for (size_t r = 0; r < kStrip && done < k; r += 4) {
    PanelColumn to = panel_column(panel, k, n_col, column_first + r);
    to.at += done * to.row_stride;
    const float* const from = rows + r * row_stride + done;
    if (r + 4 <= n_valid) {
      const float* const four[4] = {from, from + row_stride, from + 2 * row_stride,
                                    from + 3 * row_stride};
      transpose_4(four, k - done, to);
      continue;
    }
    for (size_t i = 0; i < k - done; ++i) {
      for (size_t c = 0; c < 4; ++c) {
        to.at[i * to.row_stride + c] = r + c < n_valid ? from[c * row_stride + i] : 0.0f;
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

void ToOperand(const float* in, size_t n, std::byte* out) {
  std::memcpy(out, in, n * sizeof(float));
}

}  // namespace

const TileOps* Ops() {
  static const TileOps ops = {
      hwy::TargetName(HWY_TARGET), sizeof(float), kRows, ToOperand, PackTransposed, Pack, Multiply};
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
