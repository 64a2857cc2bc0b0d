#include "kernels/tile_bf16.h"

#if defined(__x86_64__)

// GCC 12's own header trips over it (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "kernels/row_blocks.h"

// Functions that are inlined into each other must have the same target. The emulation has it too:
// no compiler makes a bf16 instruction out of anything but its intrinsic.
#define HEADSTART_BF16 \
  __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16"), always_inline)) inline
#define HEADSTART_BF16_ENTRY \
  __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")))

namespace headstart::kernels {
namespace {

constexpr size_t kLanes = 16;
constexpr size_t kRows = 6;  // × 4 vectors of accumulators, of 32 registers
constexpr size_t kVectors = 4;
constexpr size_t kSubColumns = kVectors * kLanes;
constexpr size_t kOperandBytes = 2;

// A panel is [k / 2, n_col] of these: the even k in the low half.
using Pair = uint32_t;

struct Native {
  static HEADSTART_BF16 __m512 dot(__m512 sum, __m512i a, __m512i b) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }
  static HEADSTART_BF16 __m256i round(__m512 x) {
    return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x));
  }
};

// The instruction rounds the sum of a pair in its own way and takes subnormals as zero; this is as
// near as f32 comes.
struct Emulated {
  static HEADSTART_BF16 __m512 dot(__m512 sum, __m512i a, __m512i b) {
    const __m512i high = _mm512_set1_epi32(static_cast<int>(0xFFFF0000));
    const __m512 odd = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_and_si512(a, high)),
                                       _mm512_castsi512_ps(_mm512_and_si512(b, high)), sum);
    return _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_slli_epi32(a, 16)),
                           _mm512_castsi512_ps(_mm512_slli_epi32(b, 16)), odd);
  }
  // To nearest even; operands are finite.
  static HEADSTART_BF16 __m256i round(__m512 x) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(up, 16));
  }
};

HEADSTART_BF16 __m512i broadcast_pair(const std::byte* a) {
  Pair pair;
  std::memcpy(&pair, a, sizeof(pair));
  return _mm512_set1_epi32(static_cast<int>(pair));
}

// One sub-panel times kM rows: the whole depth in registers.
template <class Dot, size_t kM, size_t kN>
HEADSTART_BF16_ENTRY void multiply_block(const TileProduct& t, size_t row, size_t column,
                                         const std::byte* panel) {
  __m512 acc[kM][kN];
  const std::byte* a[kM];
#pragma GCC unroll 6
  for (size_t r = 0; r < kM; ++r) {
    a[r] = t.a + (row + r) * t.a_stride;
#pragma GCC unroll 4
    for (size_t j = 0; j < kN; ++j) {
      acc[r][j] =
          t.partial == nullptr
              ? _mm512_setzero_ps()
              : _mm512_loadu_ps(t.partial + (row + r) * t.partial_stride + column + j * kLanes);
    }
  }
  const auto* b = reinterpret_cast<const Pair*>(panel);
  for (size_t k = 0; k < t.k / 2; ++k, b += kN * kLanes) {
    __m512i bv[kN];
#pragma GCC unroll 4
    for (size_t j = 0; j < kN; ++j) bv[j] = _mm512_loadu_si512(b + j * kLanes);
#pragma GCC unroll 6
    for (size_t r = 0; r < kM; ++r) {
      const __m512i av = broadcast_pair(a[r] + k * sizeof(Pair));
#pragma GCC unroll 4
      for (size_t j = 0; j < kN; ++j) acc[r][j] = Dot::dot(acc[r][j], av, bv[j]);
    }
  }
#pragma GCC unroll 6
  for (size_t r = 0; r < kM; ++r) {
    float* c = t.c + (row + r) * t.c_stride + column;
#pragma GCC unroll 4
    for (size_t j = 0; j < kN; ++j) {
      __m512 sum = acc[r][j];
      if (t.add) sum = _mm512_add_ps(_mm512_loadu_ps(c + j * kLanes), sum);
      _mm512_storeu_ps(c + j * kLanes, sum);
    }
  }
}

// The same rows times all sub-panels: the rows stay in the level-1 cache meanwhile.
template <class Dot, size_t kM>
void multiply_rows(const TileProduct& t, size_t row) {
  for (size_t column = 0; column < t.n_col; column += kSubColumns) {
    const std::byte* panel = t.panel + column * t.k_packed * kOperandBytes;
    switch (std::min(kSubColumns, t.n_col - column) / kLanes) {
      case 1: multiply_block<Dot, kM, 1>(t, row, column, panel); break;
      case 2: multiply_block<Dot, kM, 2>(t, row, column, panel); break;
      case 3: multiply_block<Dot, kM, 3>(t, row, column, panel); break;
      default: multiply_block<Dot, kM, 4>(t, row, column, panel); break;
    }
  }
}

template <class Dot>
void multiply(const TileProduct& t) {
  for_row_blocks<kRows>(t.m, [&]<size_t kM>(size_t row) { multiply_rows<Dot, kM>(t, row); });
}

template <class Dot>
HEADSTART_BF16_ENTRY void to_operand(const float* in, size_t n, std::byte* out) {
  for (; n >= kLanes; n -= kLanes, in += kLanes, out += kLanes * kOperandBytes) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), Dot::round(_mm512_loadu_ps(in)));
  }
  if (n == 0) return;
  const __mmask16 rest = static_cast<__mmask16>((1u << n) - 1);
  const __m256i halves = Dot::round(_mm512_maskz_loadu_ps(rest, in));
  _mm256_mask_storeu_epi16(out, rest, halves);
}

// Where pair 0 of column `column` lies, and how far the next pair is.
struct PanelColumn {
  Pair* at;
  size_t row_stride;
};
PanelColumn panel_column(std::byte* panel, size_t k, size_t n_col, size_t column) {
  const size_t sub = column / kSubColumns * kSubColumns;
  return {reinterpret_cast<Pair*>(panel) + sub * (k / 2) + (column - sub),
          std::min(kSubColumns, n_col - sub)};
}

// The pairs of kLanes columns.
template <class Dot>
HEADSTART_BF16 __m512i pairs_of(const float* even, const float* odd) {
  const __m512i low = _mm512_cvtepu16_epi32(Dot::round(_mm512_loadu_ps(even)));
  const __m512i high = _mm512_cvtepu16_epi32(Dot::round(_mm512_loadu_ps(odd)));
  return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
}

template <class Dot>
HEADSTART_BF16_ENTRY void pack_weights(const StripRows& rows, size_t k, size_t column_first,
                                       size_t n_col, std::byte* panel) {
  PanelColumn to = panel_column(panel, k, n_col, column_first);
  alignas(64) float strip[kStripPiece * kStrip];
  for (size_t done = 0; done < k; done += kStripPiece) {
    const size_t n = std::min(kStripPiece, k - done);
    dequantize_strip(rows.from(done), n, strip, kStrip);
    for (size_t i = 0; i + 1 < n; i += 2, to.at += to.row_stride) {
      const float* const even = strip + i * kStrip;
      _mm512_storeu_si512(to.at, pairs_of<Dot>(even, even + kStrip));
    }
  }
}

template <class Dot>
HEADSTART_BF16_ENTRY void pack(const float* rows, size_t row_stride, size_t k, size_t n_col,
                               std::byte* panel) {
  for (size_t column = 0; column < n_col; column += kLanes) {
    const PanelColumn to = panel_column(panel, k, n_col, column);
    for (size_t i = 0; i + 1 < k; i += 2) {
      const float* const even = rows + i * row_stride + column;
      _mm512_storeu_si512(to.at + i / 2 * to.row_stride, pairs_of<Dot>(even, even + row_stride));
    }
  }
}

size_t panel_bytes(size_t k, size_t n_col) { return k * n_col * kOperandBytes; }

template <class Dot>
constexpr TileOps make_ops(const char* name) {
  return {{name,
           {1, kOperandBytes},
           kRows,
           to_operand<Dot>,
           panel_bytes,
           pack_weights<Dot>,
           multiply<Dot>},
          pack<Dot>};
}

bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

}  // namespace

const TileOps* tile_ops_avx512bf16() {
  static constexpr TileOps ops = make_ops<Native>("AVX512_BF16");
  return has_avx512() && __builtin_cpu_supports("avx512bf16") ? &ops : nullptr;
}

const TileOps* tile_ops_avx512bf16_emulated() {
  static constexpr TileOps ops = make_ops<Emulated>("AVX512_BF16 emulated");
  return has_avx512() ? &ops : nullptr;
}

}  // namespace headstart::kernels

#else

namespace headstart::kernels {
const TileOps* tile_ops_avx512bf16() { return nullptr; }
const TileOps* tile_ops_avx512bf16_emulated() { return nullptr; }
}  // namespace headstart::kernels

#endif
