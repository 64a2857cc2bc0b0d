#include "kernels/tile_bf16.h"

#if defined(__aarch64__)

#include <arm_neon.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>

#include <algorithm>
#include <cstring>

#include "kernels/row_blocks.h"

#define HEADSTART_BF16 __attribute__((target("arch=armv8.2-a+bf16"), always_inline)) inline
#define HEADSTART_BF16_ENTRY __attribute__((target("arch=armv8.2-a+bf16")))

namespace headstart::kernels {
namespace {

constexpr size_t kLanes = 4;
constexpr size_t kRows = 6;  // × 4 vectors of accumulators, of 32 registers
constexpr size_t kVectors = 4;
constexpr size_t kSubColumns = kVectors * kLanes;
static_assert(kSubColumns == kColumnPad && kSubColumns == kStrip);
constexpr size_t kOperandBytes = 2;

// A panel is sub-panels of 16 columns, each [k / 2, 16] of these: the even k in the low half.
using Pair = uint32_t;

HEADSTART_BF16 bfloat16x8_t as_bf16(uint32x4_t pairs) { return vreinterpretq_bf16_u32(pairs); }

HEADSTART_BF16 uint32x4_t broadcast_pair(const std::byte* a) {
  Pair pair;
  std::memcpy(&pair, a, sizeof(pair));
  return vdupq_n_u32(pair);
}

// One sub-panel times kM rows: the whole depth in registers.
template <size_t kM>
HEADSTART_BF16_ENTRY void multiply_block(const TileProduct& t, size_t row, size_t column,
                                         const Pair* b) {
  float32x4_t acc[kM][kVectors];
  const std::byte* a[kM];
#pragma GCC unroll 6
  for (size_t r = 0; r < kM; ++r) {
    a[r] = t.a + (row + r) * t.a_stride;
#pragma GCC unroll 4
    for (size_t j = 0; j < kVectors; ++j) {
      acc[r][j] = t.partial == nullptr
                      ? vdupq_n_f32(0)
                      : vld1q_f32(t.partial + (row + r) * t.partial_stride + column + j * kLanes);
    }
  }
  for (size_t k = 0; k < t.k / 2; ++k, b += kSubColumns) {
    uint32x4_t bv[kVectors];
#pragma GCC unroll 4
    for (size_t j = 0; j < kVectors; ++j) bv[j] = vld1q_u32(b + j * kLanes);
#pragma GCC unroll 6
    for (size_t r = 0; r < kM; ++r) {
      const uint32x4_t av = broadcast_pair(a[r] + k * sizeof(Pair));
#pragma GCC unroll 4
      for (size_t j = 0; j < kVectors; ++j) {
        acc[r][j] = vbfdotq_f32(acc[r][j], as_bf16(av), as_bf16(bv[j]));
      }
    }
  }
#pragma GCC unroll 6
  for (size_t r = 0; r < kM; ++r) {
    float* c = t.c + (row + r) * t.c_stride + column;
#pragma GCC unroll 4
    for (size_t j = 0; j < kVectors; ++j) {
      float32x4_t sum = acc[r][j];
      if (t.add) sum = vaddq_f32(vld1q_f32(c + j * kLanes), sum);
      vst1q_f32(c + j * kLanes, sum);
    }
  }
}

// Where pair 0 of column `column` lies.
Pair* pairs_at(std::byte* panel, size_t k, size_t column) {
  return reinterpret_cast<Pair*>(panel) + column / kSubColumns * kSubColumns * (k / 2);
}

template <size_t kM>
void multiply_rows(const TileProduct& t, size_t row) {
  for (size_t column = 0; column < t.n_col; column += kSubColumns) {
    multiply_block<kM>(t, row, column,
                       reinterpret_cast<const Pair*>(t.panel) + column * (t.k_packed / 2));
  }
}

void multiply(const TileProduct& t) {
  for_row_blocks<kRows>(t.m, [&]<size_t kM>(size_t row) { multiply_rows<kM>(t, row); });
}

// To nearest even.
HEADSTART_BF16 uint16x4_t round(float32x4_t x) { return vreinterpret_u16_bf16(vcvt_bf16_f32(x)); }

HEADSTART_BF16_ENTRY void to_operand(const float* in, size_t n, std::byte* out) {
  auto* to = reinterpret_cast<uint16_t*>(out);
  for (; n >= kLanes; n -= kLanes, in += kLanes, to += kLanes) {
    const uint16x4_t values = round(vld1q_f32(in));
    std::memcpy(to, &values, sizeof(values));
  }
  if (n == 0) return;
  float last[kLanes] = {};
  std::copy_n(in, n, last);
  const uint16x4_t values = round(vld1q_f32(last));
  std::memcpy(to, &values, n * kOperandBytes);
}

// The pairs of a sub-panel's columns from their even and odd k.
HEADSTART_BF16 void store_pairs(const float* even, const float* odd, Pair* to) {
#pragma GCC unroll 4
  for (size_t j = 0; j < kVectors; ++j) {
    const uint16x4x2_t both =
        vzip_u16(round(vld1q_f32(even + j * kLanes)), round(vld1q_f32(odd + j * kLanes)));
    vst1q_u16(reinterpret_cast<uint16_t*>(to + j * kLanes), vcombine_u16(both.val[0], both.val[1]));
  }
}

HEADSTART_BF16_ENTRY void pack_weights(const StripRows& rows, size_t k, size_t column_first, size_t,
                                       std::byte* panel) {
  Pair* to = pairs_at(panel, k, column_first);
  alignas(64) float strip[kStripPiece * kStrip];
  for (size_t done = 0; done < k; done += kStripPiece) {
    const size_t n = std::min(kStripPiece, k - done);
    dequantize_strip(rows.from(done), n, strip, kStrip);
    for (size_t i = 0; i + 1 < n; i += 2, to += kSubColumns) {
      store_pairs(strip + i * kStrip, strip + (i + 1) * kStrip, to);
    }
  }
}

HEADSTART_BF16_ENTRY void pack(const float* rows, size_t row_stride, size_t k, size_t n_col,
                               std::byte* panel) {
  for (size_t column = 0; column < n_col; column += kSubColumns) {
    Pair* to = pairs_at(panel, k, column);
    for (size_t i = 0; i + 1 < k; i += 2, to += kSubColumns) {
      const float* const even = rows + i * row_stride + column;
      store_pairs(even, even + row_stride, to);
    }
  }
}

size_t panel_bytes(size_t k, size_t n_col) { return k * n_col * kOperandBytes; }

}  // namespace

const TileOps* tile_ops_neonbf16() {
  static constexpr TileOps ops = {
      {"NEON_BF16", {1, kOperandBytes}, kRows, to_operand, panel_bytes, pack_weights, multiply},
      pack};
  return (getauxval(AT_HWCAP2) & HWCAP2_BF16) != 0 ? &ops : nullptr;
}

}  // namespace headstart::kernels

#else

namespace headstart::kernels {
const TileOps* tile_ops_neonbf16() { return nullptr; }
}  // namespace headstart::kernels

#endif
