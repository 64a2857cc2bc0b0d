// ARMv8.0 NEON, and the same with the dot product instruction of ARMv8.2.
//
// Columns stay in their plain order: a block meets its column in four to six instructions of
// multiplication, and the sums of four blocks are folded into one register by three pairwise
// additions, which is cheaper here than to transpose the weights.
#include "kernels/matvec_targets.h"

#if defined(__aarch64__)
#include <arm_neon.h>
#if defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

namespace headstart::kernels {
namespace {

#define HS_INLINE [[gnu::always_inline]] inline

using Bytes = const uint8_t*;

// How a block meets a column; the products of a lane of 16 bits must not overflow.
struct Multiply {
  static constexpr const char* kName = "neon";
  HS_INLINE static int16x8_t products(int8x16_t w, int8x16_t x) {
    return vmlal_high_s8(vmull_s8(vget_low_s8(w), vget_low_s8(x)), w, x);
  }
  HS_INLINE static int32x4_t half(int8x16_t w, int8x16_t x) { return vpaddlq_s16(products(w, x)); }
  // kSums: how many products fit 16 bits together.
  template <int kSums>
  HS_INLINE static int32x4_t block(const int8x16_t w[2], const int8x16_t x[2]) {
    int16x8_t sum = products(w[0], x[0]);
    if constexpr (kSums < 4) {
      return vpadalq_s16(vpaddlq_s16(sum), products(w[1], x[1]));
    } else {
      sum = vmlal_s8(sum, vget_low_s8(w[1]), vget_low_s8(x[1]));
      return vpaddlq_s16(vmlal_high_s8(sum, w[1], x[1]));
    }
  }
};

struct DotProduct {
  static constexpr const char* kName = "neon dotprod";
  // By assembly, because an intrinsic would need the whole file compiled for ARMv8.2.
  HS_INLINE static int32x4_t add(int32x4_t sum, int8x16_t w, int8x16_t x) {
    asm(".arch armv8.2-a+dotprod\n\tsdot %0.4s, %1.16b, %2.16b" : "+w"(sum) : "w"(w), "w"(x));
    return sum;
  }
  HS_INLINE static int32x4_t half(int8x16_t w, int8x16_t x) { return add(vdupq_n_s32(0), w, x); }
  template <int kSums>
  HS_INLINE static int32x4_t block(const int8x16_t w[2], const int8x16_t x[2]) {
    return add(half(w[0], x[0]), w[1], x[1]);
  }
};

// [half of the block][half of the group]; [0] alone where a block has one scale.
struct Scales {
  float32x4_t d[2][2], m[2][2];
};

template <int kLeft>
HS_INLINE uint8x16_t shift(uint8x16_t v) {
  if constexpr (kLeft > 0) return vshlq_n_u8(v, kLeft);
  if constexpr (kLeft < 0) return vshrq_n_u8(v, -kLeft);
  return v;
}
HS_INLINE int8x16_t as_signed(uint8x16_t v) { return vreinterpretq_s8_u8(v); }

HS_INLINE float32x4_t to_floats(uint16x4_t halves) {
  return vcvt_f32_f16(vreinterpret_f16_u16(halves));
}

template <class T>
HS_INLINE T at(Bytes p) {
  T v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

// The f16 at p of eight blocks.
template <int kStride>
HS_INLINE void halves_at(Bytes p, float32x4_t out[2]) {
  for (int h = 0; h < 2; ++h, p += 4 * kStride) {
    uint16x4_t v = vdup_n_u16(at<uint16_t>(p));
    v = vset_lane_u16(at<uint16_t>(p + kStride), v, 1);
    v = vset_lane_u16(at<uint16_t>(p + 2 * kStride), v, 2);
    v = vset_lane_u16(at<uint16_t>(p + 3 * kStride), v, 3);
    out[h] = to_floats(v);
  }
}

HS_INLINE float32x4_t half_at(Bytes p) { return to_floats(vdup_n_u16(at<uint16_t>(p))); }

// A format gives blocks 4 * kHalf to 4 * kHalf + 3 of a group as signed bytes, of which kOffset is
// yet to be subtracted. [4 blocks][2 halves]
template <int kBytes, int kQuantsAt, int kOffsetOf, bool kHasMin>
struct FourBits {
  static constexpr int kGroupBytes = 8 * kBytes, kOffset = kOffsetOf, kSums = 4;
  static constexpr bool kHalves = false, kMin = kHasMin;
  template <int kHalf>
  HS_INLINE static void values(Bytes p, int8x16_t w[8]) {
    for (int b = 0; b < 4; ++b) {
      const uint8x16_t q = vld1q_u8(p + (4 * kHalf + b) * kBytes + kQuantsAt);
      w[2 * b] = as_signed(vandq_u8(q, vdupq_n_u8(15)));
      w[2 * b + 1] = as_signed(vshrq_n_u8(q, 4));
    }
  }
  HS_INLINE static void scales(Bytes p, Scales& s) {
    halves_at<kBytes>(p, s.d[0]);
    if constexpr (kHasMin) halves_at<kBytes>(p + 2, s.m[0]);
  }
};

using Q4_0 = FourBits<18, 2, 8, false>;
using Q4_1 = FourBits<20, 4, 0, true>;

struct Iq4Nl : Q4_0 {
  static constexpr int kOffset = 0, kSums = 2;
  template <int kHalf>
  HS_INLINE static void values(Bytes p, int8x16_t w[8]) {
    static constexpr int8_t kValues[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                           1,    13,   25,  38,  53,  69,  89,  113};
    Q4_0::values<kHalf>(p, w);
    for (int i = 0; i < 8; ++i) w[i] = vqtbl1q_s8(vld1q_s8(kValues), vreinterpretq_u8_s8(w[i]));
  }
};

// A fifth bit of each value, 32 in a word before the nibbles.
template <int kBytes, int kHighAt, int kOffsetOf, bool kHasMin>
struct FiveBits : FourBits<kBytes, kHighAt + 4, kOffsetOf, kHasMin> {
  template <int kHalf>
  HS_INLINE static void values(Bytes p, int8x16_t w[8]) {
    static constexpr uint8_t kByte[16] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1};
    static constexpr uint8_t kBit[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    FourBits<kBytes, kHighAt + 4, kOffsetOf, kHasMin>::template values<kHalf>(p, w);
    for (int b = 0; b < 4; ++b) {
      Bytes word = p + (4 * kHalf + b) * kBytes + kHighAt;
      for (int i = 0; i < 2; ++i) {
        const uint8x16_t both = vreinterpretq_u8_u16(vdupq_n_u16(at<uint16_t>(word + 2 * i)));
        const uint8x16_t is_set = vtstq_u8(vqtbl1q_u8(both, vld1q_u8(kByte)), vld1q_u8(kBit));
        const uint8x16_t bit = vandq_u8(is_set, vdupq_n_u8(16));
        w[2 * b + i] = vorrq_s8(w[2 * b + i], as_signed(bit));
      }
    }
  }
};

using Q5_0 = FiveBits<22, 2, 16, false>;
using Q5_1 = FiveBits<24, 4, 0, true>;

struct Q8_0 {
  static constexpr int kGroupBytes = 8 * 34, kOffset = 0, kSums = 2;
  static constexpr bool kHalves = false, kMin = false;
  template <int kHalf>
  HS_INLINE static void values(Bytes p, int8x16_t w[8]) {
    for (int b = 0; b < 4; ++b) {
      const auto* q = reinterpret_cast<const int8_t*>(p + (4 * kHalf + b) * 34 + 2);
      w[2 * b] = vld1q_s8(q);
      w[2 * b + 1] = vld1q_s8(q + 16);
    }
  }
  HS_INLINE static void scales(Bytes p, Scales& s) { halves_at<34>(p, s.d[0]); }
};

// f(constant<0>) to f(constant<3>): the blocks of half a group, for shifts by constants.
template <class F>
HS_INLINE void for_blocks(F f) {
  [&]<int... kBlocks>(std::integer_sequence<int, kBlocks...>) __attribute__((always_inline)) {
    (f(std::integral_constant<int, kBlocks>()), ...);
  }
  (std::make_integer_sequence<int, 4>());
}

HS_INLINE void to_floats(uint8x8_t bytes, float32x4_t factor, float32x4_t out[2]) {
  const uint16x8_t wide = vmovl_u8(bytes);
  out[0] = vmulq_f32(factor, vcvtq_f32_u32(vmovl_u16(vget_low_u16(wide))));
  out[1] = vmulq_f32(factor, vcvtq_f32_u32(vmovl_high_u16(wide)));
}

template <bool kHasHigh>
struct Q45_K {
  static constexpr int kGroupBytes = kHasHigh ? 176 : 144, kOffset = 0, kSums = 4;
  static constexpr bool kHalves = false, kMin = true;

  // Block 2c has the low and block 2c + 1 the high nibbles of chunk c of 32 bytes; bit b of byte v
  // of the high bits is that of value v of block b.
  template <int kHalf>
  HS_INLINE static void values(Bytes p, int8x16_t w[8]) {
    Bytes q = p + (kHasHigh ? 48 : 16) + 64 * kHalf;
    for (int i = 0; i < 4; ++i) {
      const uint8x16_t v = vld1q_u8(q + 16 * i);
      w[i / 2 * 4 + i % 2] = as_signed(vandq_u8(v, vdupq_n_u8(15)));
      w[i / 2 * 4 + i % 2 + 2] = as_signed(vshrq_n_u8(v, 4));
    }
    if constexpr (kHasHigh) {
      for_blocks([&](auto b) __attribute__((always_inline)) {
        for (int i = 0; i < 2; ++i) {
          const uint8x16_t bit =
              vandq_u8(shift<4 - (4 * kHalf + b)>(vld1q_u8(p + 16 + 16 * i)), vdupq_n_u8(16));
          w[2 * b + i] = vorrq_s8(w[2 * b + i], as_signed(bit));
        }
      });
    }
  }

  // Of the 12 bytes s: scale j < 4 is the low six bits of s[j], minimum j those of s[j + 4]; for
  // j >= 4 they are the nibbles of s[j + 4], with the top two bits of s[j - 4] and s[j] above.
  HS_INLINE static void scales(Bytes p, Scales& s) {
    static constexpr uint8_t kLowAt[16] = {4, 5, 6,  7,  12, 13, 14, 15,
                                           8, 9, 10, 11, 12, 13, 14, 15};
    static constexpr uint8_t kHighAt[16] = {255, 255, 255, 255, 4, 5, 6,  7,
                                            255, 255, 255, 255, 8, 9, 10, 11};
    static constexpr int8_t kShift[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, -4, -4, -4, -4};
    static constexpr uint8_t kMask[16] = {63, 63, 63, 63, 15, 15, 15, 15,
                                          63, 63, 63, 63, 15, 15, 15, 15};
    const uint8x16_t packed = vld1q_u8(p);  // the 12 bytes start at byte 4
    const uint8x16_t low =
        vandq_u8(vshlq_u8(vqtbl1q_u8(packed, vld1q_u8(kLowAt)), vld1q_s8(kShift)), vld1q_u8(kMask));
    const uint8x16_t high =
        vandq_u8(vshrq_n_u8(vqtbl1q_u8(packed, vld1q_u8(kHighAt)), 2), vdupq_n_u8(0x30));
    const uint8x16_t six = vorrq_u8(low, high);
    to_floats(vget_low_u8(six), half_at(p), s.d[0]);
    to_floats(vget_high_u8(six), vnegq_f32(half_at(p + 2)), s.m[0]);
  }
};

// Sixteen scales, two for each block, times d.
HS_INLINE void split_halves(float32x4_t d, int8x16_t bytes, float32x4_t out[2][2]) {
  const int8x16_t split = vuzp1q_s8(bytes, bytes), second = vuzp2q_s8(bytes, bytes);
  for (int h = 0; h < 2; ++h) {
    const int16x8_t wide = vmovl_s8(vget_low_s8(h == 0 ? split : second));
    out[h][0] = vmulq_f32(d, vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide))));
    out[h][1] = vmulq_f32(d, vcvtq_f32_s32(vmovl_high_s16(wide)));
  }
}

struct Q6_K {
  static constexpr int kGroupBytes = 210, kOffset = 32;
  static constexpr bool kHalves = true, kMin = false;

  // Low bits of block 4n + r: nibble r / 2 of chunk 2n + r % 2 of 32 bytes; high bits at 2r of
  // chunk n.
  template <int kHalf>
  HS_INLINE static void values(Bytes p, int8x16_t w[8]) {
    for_blocks([&](auto r) __attribute__((always_inline)) {
      for (int i = 0; i < 2; ++i) {
        const uint8x16_t q = vld1q_u8(p + 64 * kHalf + 32 * (r % 2) + 16 * i);
        const uint8x16_t low = r < 2 ? vandq_u8(q, vdupq_n_u8(15)) : vshrq_n_u8(q, 4);
        const uint8x16_t high = shift<4 - 2 * r>(vld1q_u8(p + 128 + 32 * kHalf + 16 * i));
        w[2 * r + i] = as_signed(vorrq_u8(low, vandq_u8(high, vdupq_n_u8(0x30))));
      }
    });
  }
  HS_INLINE static void scales(Bytes p, Scales& s) {
    split_halves(half_at(p + 208), as_signed(vld1q_u8(p + 192)), s.d);
  }
};

struct Q2_K {
  static constexpr int kGroupBytes = 84, kOffset = 0;
  static constexpr bool kHalves = true, kMin = true;

  // Blocks 4n + r have their two bits at 2r of chunk n of 32 bytes.
  template <int kHalf>
  HS_INLINE static void two_bits(Bytes q, int8x16_t w[8]) {
    for_blocks([&](auto r) __attribute__((always_inline)) {
      for (int i = 0; i < 2; ++i) {
        w[2 * r + i] =
            as_signed(vandq_u8(shift<-2 * r>(vld1q_u8(q + 32 * kHalf + 16 * i)), vdupq_n_u8(3)));
      }
    });
  }
  template <int kHalf>
  HS_INLINE static void values(Bytes p, int8x16_t w[8]) {
    two_bits<kHalf>(p + 16, w);
  }
  HS_INLINE static void scales(Bytes p, Scales& s) {
    const uint8x16_t packed = vld1q_u8(p);
    split_halves(half_at(p + 80), as_signed(vandq_u8(packed, vdupq_n_u8(15))), s.d);
    split_halves(vnegq_f32(half_at(p + 82)), as_signed(vshrq_n_u8(packed, 4)), s.m);
  }
};

struct Q3_K {
  static constexpr int kGroupBytes = 110, kOffset = 4;
  static constexpr bool kHalves = true, kMin = false;

  // Bit b of byte v of the first 32 is the third of value v of block b.
  template <int kHalf>
  HS_INLINE static void values(Bytes p, int8x16_t w[8]) {
    Q2_K::two_bits<kHalf>(p + 32, w);
    for_blocks([&](auto b) __attribute__((always_inline)) {
      for (int i = 0; i < 2; ++i) {
        const uint8x16_t bit =
            vandq_u8(shift<2 - (4 * kHalf + b)>(vld1q_u8(p + 16 * i)), vdupq_n_u8(4));
        w[2 * b + i] = vorrq_s8(w[2 * b + i], as_signed(bit));
      }
    });
  }
  // Four low bits of the sixteen in bytes 0 to 7, two high ones in bytes 8 to 11.
  HS_INLINE static void scales(Bytes p, Scales& s) {
    static constexpr int8_t kShift[16] = {4, 4, 4, 4, 2, 2, 2, 2, 0, 0, 0, 0, -2, -2, -2, -2};
    const uint8x8_t bytes = vld1_u8(p + 96);
    const uint8x16_t low = vcombine_u8(vand_u8(bytes, vdup_n_u8(15)), vshr_n_u8(bytes, 4));
    const uint8x16_t high = vreinterpretq_u8_u32(vdupq_n_u32(at<uint32_t>(p + 104)));
    const uint8x16_t six =
        vorrq_u8(low, vandq_u8(vshlq_u8(high, vld1q_s8(kShift)), vdupq_n_u8(0x30)));
    split_halves(half_at(p + 108), vsubq_s8(as_signed(six), vdupq_n_s8(32)), s.d);
  }
};

// Four registers to the sums of each.
HS_INLINE int32x4_t fold(const int32x4_t v[4]) {
  return vpaddq_s32(vpaddq_s32(v[0], v[1]), vpaddq_s32(v[2], v[3]));
}

// Half a group with one column.
template <class Format, class Dot, int kHalf>
HS_INLINE float32x4_t add_half(const int8x16_t w[8], const Scales& s, const ColumnGroup& x,
                               float32x4_t acc) {
  const float32x4_t d = vld1q_f32(x.d + 4 * kHalf);
  const auto add = [&](int32x4_t dot, const int32_t* x_sum, int h) {
    if constexpr (Format::kOffset > 0)
      dot = vmlsq_n_s32(dot, vld1q_s32(x_sum + 4 * kHalf), Format::kOffset);
    acc = vfmaq_f32(acc, vcvtq_f32_s32(dot), vmulq_f32(s.d[h][kHalf], d));
  };
  const int8_t* q = x.q + kHalf * 4 * kBlock;
  int32x4_t first[4], second[4];
  for (int b = 0; b < 4; ++b) {
    const int8x16_t v[2] = {vld1q_s8(q + 32 * b), vld1q_s8(q + 32 * b + 16)};
    if constexpr (Format::kHalves) {
      first[b] = Dot::half(w[2 * b], v[0]);
      second[b] = Dot::half(w[2 * b + 1], v[1]);
    } else {
      first[b] = Dot::template block<Format::kSums>(w + 2 * b, v);
    }
  }
  if constexpr (!Format::kHalves) {
    add(fold(first), x.int_sum, 0);
    if constexpr (Format::kMin) acc = vfmaq_f32(acc, s.m[0][kHalf], vld1q_f32(x.sum + 4 * kHalf));
  } else {
    add(fold(first), x.half_sum[0], 0);
    add(fold(second), x.half_sum[1], 1);
    for (int h = 0; Format::kMin && h < 2; ++h) {
      const float32x4_t sum = vcvtq_f32_s32(vld1q_s32(x.half_sum[h] + 4 * kHalf));
      acc = vfmaq_f32(acc, s.m[h][kHalf], vmulq_f32(d, sum));
    }
  }
  return acc;
}

HS_INLINE float tree(float32x4_t low, float32x4_t high) {
  const float32x4_t t = vaddq_f32(low, high);
  const float32x2_t u = vadd_f32(vget_low_f32(t), vget_high_f32(t));
  return vget_lane_f32(u, 0) + vget_lane_f32(u, 1);
}

template <class Format, class Dot, int kHalf, int kCols>
HS_INLINE void add_columns(Bytes p, size_t n_block, const Scales& s, const ColumnsView& x, size_t g,
                           float32x4_t acc[kCols][2]) {
  static constexpr uint32_t kLanes[4] = {0, 1, 2, 3};
  int8x16_t w[8];
  Format::template values<kHalf>(p, w);
  for (int c = 0; c < kCols; ++c) {
    const float32x4_t sum = add_half<Format, Dot, kHalf>(w, s, x.groups[c][g], acc[c][kHalf]);
    if (n_block >= 4 * kHalf + 4) {
      acc[c][kHalf] = sum;
    } else {  // lanes of blocks that the row does not have stay as they are
      const auto n = static_cast<uint32_t>(std::max<size_t>(n_block, 4 * kHalf) - 4 * kHalf);
      acc[c][kHalf] = vbslq_f32(vcltq_u32(vld1q_u32(kLanes), vdupq_n_u32(n)), sum, acc[c][kHalf]);
    }
  }
}

template <class Format, class Dot, int kCols>
void rows(const WeightMatrix& w, uint32_t row_first, uint32_t row_end, const ColumnsView& x,
          float* y, size_t y_stride) {
  constexpr int kGroupBytes = Format::kGroupBytes;
  constexpr int kAhead = 1024;
  uint8_t copy[kGroupBytes];
  const size_t n_block = w.n_col / kBlock;
  const Bytes data = reinterpret_cast<Bytes>(w.data);
  const Bytes end = data + (w.n_row - 1) * w.row_bytes + n_block * kGroupBytes / kGroupBlocks;
  for (uint32_t r = row_first; r < row_end; ++r) {
    Bytes p = data + r * w.row_bytes;
    float32x4_t acc[kCols][2];
    for (int c = 0; c < kCols; ++c) acc[c][0] = acc[c][1] = vdupq_n_f32(0);
    for (size_t b = 0, g = 0; b < n_block; b += kGroupBlocks, ++g, p += kGroupBytes) {
      // What follows a row is the next one, which is left out; the last row has none.
      if (end - p < kGroupBytes) {
        std::memcpy(copy, p, (n_block - b) * kGroupBytes / kGroupBlocks);
        p = copy;
      }
      for (int line = 0; line < kGroupBytes; line += 64) __builtin_prefetch(p + kAhead + line);
      Scales s;
      Format::scales(p, s);
      add_columns<Format, Dot, 0, kCols>(p, n_block - b, s, x, g, acc);
      add_columns<Format, Dot, 1, kCols>(p, n_block - b, s, x, g, acc);
    }
    for (int c = 0; c < kCols && c < static_cast<int>(x.n_col); ++c)
      y[c * y_stride + r] = tree(acc[c][0], acc[c][1]);
  }
}

// Rows of floats, four at a time.
struct F32 {
  static constexpr int kBytes = 4;
  HS_INLINE static float32x4_t at(Bytes p) { return vreinterpretq_f32_u8(vld1q_u8(p)); }
};
struct F16 {
  static constexpr int kBytes = 2;
  HS_INLINE static float32x4_t at(Bytes p) { return to_floats(vreinterpret_u16_u8(vld1_u8(p))); }
};
struct Bf16 {
  static constexpr int kBytes = 2;
  HS_INLINE static float32x4_t at(Bytes p) {
    return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(p)), 16));
  }
};

template <class Format>
HS_INLINE float float_row(Bytes row, const float* x, size_t n) {
  float32x4_t acc[4] = {vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0)};
  size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    for (size_t k = 0; k < 4; ++k)
      acc[k] = vfmaq_f32(acc[k], Format::at(row + (i + 4 * k) * Format::kBytes),
                         vld1q_f32(x + i + 4 * k));
  }
  float lanes[16];
  for (int k = 0; k < 4; ++k) vst1q_f32(lanes + 4 * k, acc[k]);
  uint8_t copy[16 * Format::kBytes] = {};
  std::memcpy(copy, row + i * Format::kBytes, (n - i) * Format::kBytes);
  for (size_t k = 0; i + k < n; ++k) {
    float four[4];
    vst1q_f32(four, Format::at(copy + k / 4 * 4 * Format::kBytes));
    lanes[k] = std::fma(four[k % 4], x[i + k], lanes[k]);
  }
  return tree(vaddq_f32(vld1q_f32(lanes), vld1q_f32(lanes + 8)),
              vaddq_f32(vld1q_f32(lanes + 4), vld1q_f32(lanes + 12)));
}

template <class Format, class Dot, int kCols>
void run(const WeightMatrix& w, uint32_t row_first, uint32_t row_end, const ColumnsView& x,
         float* y, size_t y_stride) {
  if constexpr (requires { Format::kGroupBytes; }) {
    rows<Format, Dot, kCols>(w, row_first, row_end, x, y, y_stride);
  } else {
    for (uint32_t r = row_first; r < row_end; ++r) {
      const Bytes row = reinterpret_cast<Bytes>(w.data) + r * w.row_bytes;
      for (uint32_t c = 0; c < x.n_col; ++c)
        y[c * y_stride + r] = float_row<Format>(row, x.floats[c], w.n_col);
    }
  }
}

template <class Dot>
void matvec_neon(const WeightMatrix& w, uint32_t row_first, uint32_t row_end, const ColumnsView& x,
                 float* y, size_t y_stride) {
  const auto run_format = [&]<class Format>() {
    constexpr decltype(&run<Format, Dot, 1>) kKernels[kMaxColumns] = {
        run<Format, Dot, 1>, run<Format, Dot, 2>, run<Format, Dot, 3>, run<Format, Dot, 4>,
        run<Format, Dot, 6>, run<Format, Dot, 6>, run<Format, Dot, 8>, run<Format, Dot, 8>};
    kKernels[x.n_col - 1](w, row_first, row_end, x, y, y_stride);
  };
  with_format<F32, F16, Bf16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q45_K<false>, Q45_K<true>,
              Q6_K, Iq4Nl>(w.type, run_format);
}

// 32 values to block b of a group, all parts of the block.
void quantize_block(const float* x, ColumnGroup& out, size_t b) {
  float32x4_t v[8];
  uint32x4_t largest = vdupq_n_u32(0);
  for (int i = 0; i < 8; ++i) {
    v[i] = vld1q_f32(x + 4 * i);
    largest = vmaxq_u32(largest, vandq_u32(vreinterpretq_u32_f32(v[i]), vdupq_n_u32(kMagnitude)));
  }
  const ColumnScale scale = column_scale(vmaxvq_u32(largest));
  for (int h = 0; h < 2; ++h) {
    int32x4_t q[4];
    for (int i = 0; i < 4; ++i) {
      q[i] = vcvtnq_s32_f32(vmulq_n_f32(v[4 * h + i], scale.inverse));
      if (!scale.has_values) q[i] = vdupq_n_s32(0);
    }
    out.half_sum[h][b] = vaddvq_s32(vaddq_s32(vaddq_s32(q[0], q[1]), vaddq_s32(q[2], q[3])));
    const int16x8_t low = vcombine_s16(vmovn_s32(q[0]), vmovn_s32(q[1]));
    const int16x8_t high = vcombine_s16(vmovn_s32(q[2]), vmovn_s32(q[3]));
    vst1q_s8(out.q + kBlock * b + 16 * h, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
  }
  out.d[b] = scale.d;
  out.int_sum[b] = out.half_sum[0][b] + out.half_sum[1][b];
  out.sum[b] = scale.d * static_cast<float>(out.int_sum[b]);
}

void quantize_neon(const float* x, size_t n_value, ColumnGroup* out) {
  for (size_t first = 0; first < n_value; first += kGroup, ++out) {
    const size_t n = std::min(kGroup, n_value - first);
    if (n < kGroup) *out = ColumnGroup{};
    for (size_t b = 0; b < n / kBlock; ++b) quantize_block(x + first + b * kBlock, *out, b);
    if (n % kBlock != 0) {
      float last[kBlock] = {};
      std::copy_n(x + first + n / kBlock * kBlock, n % kBlock, last);
      quantize_block(last, *out, n / kBlock);
    }
  }
}

template <class Dot>
const MatvecTarget* target_of() {
  static const MatvecTarget target = {Dot::kName, ValueOrder::kPlain, quantize_neon,
                                      matvec_neon<Dot>};
  return &target;
}

bool has_dot_product() {
#if defined(__linux__)
  return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#elif defined(__ARM_FEATURE_DOTPROD)
  return true;
#else
  return false;
#endif
}

}  // namespace

const MatvecTarget* neon_dotprod_target() {
  return has_dot_product() ? target_of<DotProduct>() : nullptr;
}

const MatvecTarget* neon_target() { return target_of<Multiply>(); }

}  // namespace headstart::kernels
#endif  // __aarch64__
