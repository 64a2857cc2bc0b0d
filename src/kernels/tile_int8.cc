// A panel is strips of kStrip columns, each with a header and what kernels/dequant_strip.h gives of
// k weights: levels [k / 4][kStrip][4], then scales and offsets [k / kScaleSpan][kStrip].
//
// value = Σ over blocks of (dot · scale) · d + offset · (d · sum of q), two fused multiply-adds.
#include "kernels/tile_int8.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/column_scale.h"
#include "kernels/row_blocks.h"
#include "kernels/target.h"

namespace headstart::kernels {
namespace {

constexpr size_t kBlock = 32;

// A block of a row. sum, half: d times the integer sum of all and of either half.
struct RowBlock {
  int8_t q[kBlock];
  float d;
  float sum;
  float half[2];
};
constexpr OperandBlock kOperand = {kBlock, sizeof(RowBlock)};

// 64 bytes, so that levels are aligned as panels are.
struct alignas(64) StripHeader {
  uint32_t halves;  // 1: the two halves of a block have scales of their own
};

size_t strip_bytes(size_t k) {
  return sizeof(StripHeader) + k * kStrip + 2 * (k / kScaleSpan) * kStrip * sizeof(float);
}

size_t panel_bytes(size_t k, size_t n_col) { return n_col / kStrip * strip_bytes(k); }

struct Strip {
  const std::byte* level;
  const float* scale;
  const float* offset;
  bool halves;
};

Strip strip_at(const std::byte* panel, size_t k, size_t column) {
  const std::byte* const at = panel + column / kStrip * strip_bytes(k);
  const std::byte* const level = at + sizeof(StripHeader);
  const auto* const scale = reinterpret_cast<const float*>(level + k * kStrip);
  StripHeader header;
  std::memcpy(&header, at, sizeof(header));
  return {level, scale, scale + k / kScaleSpan * kStrip, header.halves != 0};
}

bool has_halves(WeightType type) {
  return type == WeightType::kQ2_K || type == WeightType::kQ3_K || type == WeightType::kQ6_K;
}

void pack_weights(const StripRows& rows, size_t k, size_t column_first, size_t, std::byte* panel) {
  std::byte* const at = panel + column_first / kStrip * strip_bytes(k);
  const StripHeader header = {has_halves(rows.type)};
  std::memcpy(at, &header, sizeof(header));
  std::byte* const level = at + sizeof(header);
  auto* const scale = reinterpret_cast<float*>(level + k * kStrip);
  strip_levels(rows, k, {level, scale, scale + k / kScaleSpan * kStrip});
}

// ---- Portable

void to_operand_portable(const float* in, size_t n, std::byte* out) {
  for (; n > 0; n -= kBlock, in += kBlock, out += sizeof(RowBlock)) {
    uint32_t largest = 0;
    for (size_t i = 0; i < kBlock; ++i) {
      largest = std::max(largest, std::bit_cast<uint32_t>(in[i]) & kMagnitude);
    }
    const ColumnScale scale = column_scale(largest);
    RowBlock block;
    int sum[2] = {};
    for (size_t i = 0; i < kBlock; ++i) {
      const int q = scale.has_values ? static_cast<int>(std::nearbyint(in[i] * scale.inverse)) : 0;
      block.q[i] = static_cast<int8_t>(q);
      sum[i / 16] += q;
    }
    block.d = scale.d;
    block.sum = scale.d * static_cast<float>(sum[0] + sum[1]);
    for (size_t h = 0; h < 2; ++h) block.half[h] = scale.d * static_cast<float>(sum[h]);
    std::memcpy(out, &block, sizeof(block));
  }
}

float multiply_one(const Strip& strip, size_t lane, const std::byte* row, size_t k, float sum) {
  const size_t n_part = strip.halves ? 2 : 1, n = kBlock / n_part;
  for (size_t b = 0; b < k / kBlock; ++b) {
    RowBlock block;
    std::memcpy(&block, row + b * sizeof(block), sizeof(block));
    for (size_t part = 0; part < n_part; ++part) {
      int dot = 0;
      for (size_t i = part * n; i < (part + 1) * n; ++i) {
        const size_t at = (b * kBlock + i) / 4 * 4 * kStrip + lane * 4 + i % 4;
        dot += static_cast<int>(strip.level[at]) * block.q[i];
      }
      const size_t at = (2 * b + part) * kStrip + lane;
      sum = std::fma(static_cast<float>(dot) * strip.scale[at], block.d, sum);
      sum = std::fma(strip.offset[at], strip.halves ? block.half[part] : block.sum, sum);
    }
  }
  return sum;
}

void multiply_portable(const TileProduct& t) {
  for (size_t column = 0; column < t.n_col; ++column) {
    const Strip strip = strip_at(t.panel, t.k_packed, column);
    for (size_t r = 0; r < t.m; ++r) {
      const float before = t.partial == nullptr ? 0.0f : t.partial[r * t.partial_stride + column];
      const float sum = multiply_one(strip, column % kStrip, t.a + r * t.a_stride, t.k, before);
      float& c = t.c[r * t.c_stride + column];
      c = t.add ? c + sum : sum;
    }
  }
}

}  // namespace

const PanelOps* panel_ops_int8_portable() {
  static constexpr PanelOps ops = {"int8 portable",     kOperand,    1,
                                   to_operand_portable, panel_bytes, pack_weights,
                                   multiply_portable};
  return has_levels(WeightType::kQ4_0) ? &ops : nullptr;
}

}  // namespace headstart::kernels

#if defined(__x86_64__)

// GCC 12's own header trips over it (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>

#define HEADSTART_VNNI \
  __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni"), always_inline)) inline
#define HEADSTART_VNNI_ENTRY \
  __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")))

namespace headstart::kernels {
namespace {

constexpr size_t kRows = 6;  // × 2 vectors of sums, once in integers and once in f32
constexpr size_t kVectors = 2;

// GCC 12 keeps the sums of the intrinsic in memory.
HEADSTART_VNNI void add_dot(__m512i& sum, __m512i levels, __m512i q) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(levels), "v"(q));
}

HEADSTART_VNNI __m512i broadcast_four(const std::byte* q) {
  int32_t four;
  std::memcpy(&four, q, sizeof(four));
  return _mm512_set1_epi32(four);
}

HEADSTART_VNNI __m512 broadcast(const std::byte* p) {
  float x;
  std::memcpy(&x, p, sizeof(x));
  return _mm512_set1_ps(x);
}

// kM rows times kN strips: the whole depth in registers.
template <size_t kM, size_t kN, bool kHalves>
HEADSTART_VNNI_ENTRY void multiply_block(const TileProduct& t, size_t row, size_t column,
                                         const Strip* strips) {
  constexpr size_t kParts = kHalves ? 2 : 1, kFours = kBlock / 4 / kParts;
  __m512 acc[kM][kN];
  const std::byte* a[kM];
#pragma GCC unroll 6
  for (size_t r = 0; r < kM; ++r) {
    a[r] = t.a + (row + r) * t.a_stride;
#pragma GCC unroll 2
    for (size_t j = 0; j < kN; ++j) {
      acc[r][j] =
          t.partial == nullptr
              ? _mm512_setzero_ps()
              : _mm512_loadu_ps(t.partial + (row + r) * t.partial_stride + column + j * kStrip);
    }
  }
  size_t at = 0;  // in bytes of levels
  for (size_t b = 0; b < t.k / kBlock; ++b) {
#pragma GCC unroll 2
    for (size_t part = 0; part < kParts; ++part) {
      __m512i dot[kM][kN];
#pragma GCC unroll 6
      for (size_t r = 0; r < kM; ++r) {
#pragma GCC unroll 2
        for (size_t j = 0; j < kN; ++j) dot[r][j] = _mm512_setzero_si512();
      }
#pragma GCC unroll 8
      for (size_t four = 0; four < kFours; ++four, at += 4 * kStrip) {
        __m512i levels[kN];
#pragma GCC unroll 2
        for (size_t j = 0; j < kN; ++j) levels[j] = _mm512_load_si512(strips[j].level + at);
#pragma GCC unroll 6
        for (size_t r = 0; r < kM; ++r) {
          const __m512i q = broadcast_four(a[r] + 4 * (part * kFours + four));
#pragma GCC unroll 2
          for (size_t j = 0; j < kN; ++j) add_dot(dot[r][j], levels[j], q);
        }
      }
      const size_t sum_at =
          kHalves ? offsetof(RowBlock, half) + part * sizeof(float) : offsetof(RowBlock, sum);
#pragma GCC unroll 2
      for (size_t j = 0; j < kN; ++j) {
        const __m512 scale = _mm512_load_ps(strips[j].scale + (2 * b + part) * kStrip);
        const __m512 offset = _mm512_load_ps(strips[j].offset + (2 * b + part) * kStrip);
#pragma GCC unroll 6
        for (size_t r = 0; r < kM; ++r) {
          const __m512 scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(dot[r][j]), scale);
          acc[r][j] = _mm512_fmadd_ps(scaled, broadcast(a[r] + offsetof(RowBlock, d)), acc[r][j]);
          acc[r][j] = _mm512_fmadd_ps(offset, broadcast(a[r] + sum_at), acc[r][j]);
        }
      }
    }
#pragma GCC unroll 6
    for (size_t r = 0; r < kM; ++r) a[r] += sizeof(RowBlock);
  }
#pragma GCC unroll 6
  for (size_t r = 0; r < kM; ++r) {
    float* c = t.c + (row + r) * t.c_stride + column;
#pragma GCC unroll 2
    for (size_t j = 0; j < kN; ++j) {
      __m512 sum = acc[r][j];
      if (t.add) sum = _mm512_add_ps(_mm512_loadu_ps(c + j * kStrip), sum);
      _mm512_storeu_ps(c + j * kStrip, sum);
    }
  }
}

// Strips with scales of one kind.
template <size_t kM, size_t kN>
void multiply_strips(const TileProduct& t, size_t row, size_t column) {
  Strip strips[kN];
  for (size_t j = 0; j < kN; ++j) {
    strips[j] = strip_at(t.panel, t.k_packed, column + j * kStrip);
  }
  if (strips[0].halves) return multiply_block<kM, kN, true>(t, row, column, strips);
  multiply_block<kM, kN, false>(t, row, column, strips);
}

// The same rows times all strips: the rows stay in the level-1 cache meanwhile.
template <size_t kM>
void multiply_rows(const TileProduct& t, size_t row) {
  size_t column = 0;
  while (column < t.n_col) {
    const bool two = column + kVectors * kStrip <= t.n_col &&
                     strip_at(t.panel, t.k_packed, column).halves ==
                         strip_at(t.panel, t.k_packed, column + kStrip).halves;
    if (two) {
      multiply_strips<kM, kVectors>(t, row, column);
    } else {
      multiply_strips<kM, 1>(t, row, column);
    }
    column += two ? kVectors * kStrip : kStrip;
  }
}

void multiply(const TileProduct& t) {
  for_row_blocks<kRows>(t.m, [&]<size_t kM>(size_t row) { multiply_rows<kM>(t, row); });
}

HEADSTART_VNNI __m512i magnitude(__m512 x) {
  return _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(kMagnitude));
}

HEADSTART_VNNI_ENTRY void to_operand(const float* in, size_t n, std::byte* out) {
  for (; n > 0; n -= kBlock, in += kBlock, out += sizeof(RowBlock)) {
    const __m512 x[2] = {_mm512_loadu_ps(in), _mm512_loadu_ps(in + 16)};
    const auto largest = static_cast<uint32_t>(
        _mm512_reduce_max_epi32(_mm512_max_epi32(magnitude(x[0]), magnitude(x[1]))));
    const ColumnScale scale = column_scale(largest);
    RowBlock block = {};
    block.d = scale.d;
    int sum[2] = {};
    for (size_t h = 0; h < 2 && scale.has_values; ++h) {
      const __m512i q = _mm512_cvtps_epi32(_mm512_mul_ps(x[h], _mm512_set1_ps(scale.inverse)));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(block.q + 16 * h), _mm512_cvtepi32_epi8(q));
      sum[h] = _mm512_reduce_add_epi32(q);
    }
    block.sum = scale.d * static_cast<float>(sum[0] + sum[1]);
    for (size_t h = 0; h < 2; ++h) block.half[h] = scale.d * static_cast<float>(sum[h]);
    std::memcpy(out, &block, sizeof(block));
  }
}

}  // namespace

const PanelOps* panel_ops_int8() {
  static constexpr PanelOps ops = {"int8 AVX512_VNNI", kOperand,     kRows,   to_operand,
                                   panel_bytes,        pack_weights, multiply};
  const bool can = target_allowed(Target::kAvx512) && __builtin_cpu_supports("avx512bw") &&
                   __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                   __builtin_cpu_supports("avx512vnni");
  return can ? &ops : nullptr;
}

}  // namespace headstart::kernels

#elif defined(__aarch64__)

#include <arm_neon.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>

#define HEADSTART_I8MM __attribute__((target("arch=armv8.2-a+i8mm"), always_inline)) inline
#define HEADSTART_I8MM_ENTRY __attribute__((target("arch=armv8.2-a+i8mm")))

namespace headstart::kernels {
namespace {

constexpr size_t kRows = 4;              // × a strip of integer sums: 16 of 32 registers
constexpr size_t kVectors = kStrip / 4;  // of a strip

// dot += levels of four weights of each column · the lane's four values of each row
template <size_t kM, int kLane>
HEADSTART_I8MM void add_four(const std::byte* level, const int8x16_t (&q)[kM],
                             int32x4_t (&dot)[kM][kVectors]) {
#pragma GCC unroll 4
  for (size_t j = 0; j < kVectors; ++j) {
    const uint8x16_t levels = vld1q_u8(reinterpret_cast<const uint8_t*>(level) + 16 * j);
#pragma GCC unroll 4
    for (size_t r = 0; r < kM; ++r) dot[r][j] = vusdotq_laneq_s32(dot[r][j], levels, q[r], kLane);
  }
}

// The same of 16 values.
template <size_t kM>
HEADSTART_I8MM void add_fours(const std::byte* level, const std::byte* const (&a)[kM], size_t at,
                              int32x4_t (&dot)[kM][kVectors]) {
  int8x16_t q[kM];
#pragma GCC unroll 4
  for (size_t r = 0; r < kM; ++r) q[r] = vld1q_s8(reinterpret_cast<const int8_t*>(a[r]) + at);
  add_four<kM, 0>(level, q, dot);
  add_four<kM, 1>(level + 4 * kStrip, q, dot);
  add_four<kM, 2>(level + 8 * kStrip, q, dot);
  add_four<kM, 3>(level + 12 * kStrip, q, dot);
}

HEADSTART_I8MM float float_at(const std::byte* p) {
  float x;
  std::memcpy(&x, p, sizeof(x));
  return x;
}

// kM rows times a strip; their sums stay in the level-1 cache.
template <size_t kM, bool kHalves>
HEADSTART_I8MM_ENTRY void multiply_block(const TileProduct& t, size_t row, size_t column,
                                         const Strip& strip) {
  constexpr size_t kParts = kHalves ? 2 : 1, kPart = kBlock / kParts;
  float sums[kM][kStrip];
  const std::byte* a[kM];
  for (size_t r = 0; r < kM; ++r) {
    a[r] = t.a + (row + r) * t.a_stride;
    const float* before = t.partial + (row + r) * t.partial_stride + column;
    for (size_t j = 0; j < kStrip; ++j) sums[r][j] = t.partial == nullptr ? 0.0f : before[j];
  }
  const std::byte* level = strip.level;
  for (size_t b = 0; b < t.k / kBlock; ++b) {
    for (size_t part = 0; part < kParts; ++part) {
      int32x4_t dot[kM][kVectors] = {};
      for (size_t i = 0; i < kPart; i += 16, level += 16 * kStrip) {
        add_fours<kM>(level, a, part * kPart + i, dot);
      }
      const size_t sum_at =
          kHalves ? offsetof(RowBlock, half) + part * sizeof(float) : offsetof(RowBlock, sum);
#pragma GCC unroll 4
      for (size_t j = 0; j < kVectors; ++j) {
        const size_t at = (2 * b + part) * kStrip + 4 * j;
        const float32x4_t scale = vld1q_f32(strip.scale + at);
        const float32x4_t offset = vld1q_f32(strip.offset + at);
#pragma GCC unroll 4
        for (size_t r = 0; r < kM; ++r) {
          float32x4_t sum = vld1q_f32(&sums[r][4 * j]);
          const float32x4_t scaled = vmulq_f32(vcvtq_f32_s32(dot[r][j]), scale);
          sum = vfmaq_n_f32(sum, scaled, float_at(a[r] + offsetof(RowBlock, d)));
          vst1q_f32(&sums[r][4 * j], vfmaq_n_f32(sum, offset, float_at(a[r] + sum_at)));
        }
      }
    }
    for (size_t r = 0; r < kM; ++r) a[r] += sizeof(RowBlock);
  }
  for (size_t r = 0; r < kM; ++r) {
    float* c = t.c + (row + r) * t.c_stride + column;
    for (size_t j = 0; j < kStrip; ++j) c[j] = t.add ? c[j] + sums[r][j] : sums[r][j];
  }
}

template <size_t kM>
void multiply_rows(const TileProduct& t, size_t row) {
  for (size_t column = 0; column < t.n_col; column += kStrip) {
    const Strip strip = strip_at(t.panel, t.k_packed, column);
    if (strip.halves) {
      multiply_block<kM, true>(t, row, column, strip);
    } else {
      multiply_block<kM, false>(t, row, column, strip);
    }
  }
}

void multiply(const TileProduct& t) {
  for_row_blocks<kRows>(t.m, [&]<size_t kM>(size_t row) { multiply_rows<kM>(t, row); });
}

}  // namespace

const PanelOps* panel_ops_int8() {
  static constexpr PanelOps ops = {"int8 NEON_I8MM", kOperand,     kRows,   to_operand_portable,
                                   panel_bytes,      pack_weights, multiply};
  const bool can = target_allowed(Target::kNeonBf16) && (getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0;
  return can ? &ops : nullptr;
}

}  // namespace headstart::kernels

#else

namespace headstart::kernels {
const PanelOps* panel_ops_int8() { return nullptr; }
}  // namespace headstart::kernels

#endif
