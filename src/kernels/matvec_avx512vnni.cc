// AVX-512 with VNNI and VBMI (Ice Lake, Zen 4 and later).
//
// A lane of 32 bits holds a block: eight blocks of a row are unpacked to four registers, each of
// [two fours][8 blocks][4 values], which the interleaved column multiplies by vpdpbusd without any
// sum across lanes. Two rows go together: their sums meet in one register of [2 rows][8 blocks].
#include "kernels/matvec_targets.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <cstring>

namespace headstart::kernels {
namespace {

#define HS_INLINE [[gnu::always_inline]] inline

using Bytes = const uint8_t*;

constexpr int kAOrBAndC = 0xF8;  // a | (b & c), for vpternlog

HS_INLINE __m128i load16(Bytes p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
HS_INLINE __m256i load32(Bytes p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
HS_INLINE __m512i load64(Bytes p) { return _mm512_loadu_si512(p); }

// A constant of one register.
template <class T>
struct alignas(64) Table {
  T at[64 / sizeof(T)];
};

template <class T>
HS_INLINE __m512i load(const Table<T>& t) {
  return _mm512_load_si512(t.at);
}

// Indices for lane (j, block) with j of 0, 1: f(j, block).
template <class F>
constexpr Table<int32_t> per_lane(F f) {
  Table<int32_t> out{};
  for (int i = 0; i < 16; ++i) out.at[i] = f(i / 8, i % 8);
  return out;
}

// The same for the four registers of a group: f(four, block).
struct Fours {
  Table<int32_t> at[4];
};
template <class F>
constexpr Fours fours(F f) {
  Fours out{};
  for (int i = 0; i < 4; ++i)
    out.at[i] = per_lane([&](int j, int block) { return f(2 * i + j, block); });
  return out;
}

// Collects bytes that lie kStride apart in eight blocks, through as few 64-byte windows as cover
// them. Byte i of the result is byte kAt(i) of the blocks, or 0 where kAt(i) is negative.
template <int kSize, auto kAt>
struct Collect {
  static constexpr int kWindows = (kSize + 63) / 64;
  static constexpr int start(int w) { return w < kWindows - 1 ? 64 * w : kSize - 64; }
  static constexpr int window(int at) { return at / 64; }

  struct Window {
    Table<uint8_t> index{};
    uint64_t mask = 0;
  };
  struct Windows {
    Window at[kWindows];
  };
  static constexpr Windows kTable = [] {
    Windows out{};
    for (int i = 0; i < 64; ++i) {
      const int at = kAt(i);
      if (at < 0) continue;
      Window& w = out.at[window(at)];
      w.index.at[i] = static_cast<uint8_t>(at - start(window(at)));
      w.mask |= uint64_t{1} << i;
    }
    return out;
  }();

  HS_INLINE static __m512i of(Bytes p) {
    __m512i z =
        _mm512_maskz_permutexvar_epi8(kTable.at[0].mask, load(kTable.at[0].index), load64(p));
#pragma GCC unroll 8
    for (int w = 1; w < kWindows; ++w) {
      if (kTable.at[w].mask == 0) continue;
      z = _mm512_mask_permutexvar_epi8(z, kTable.at[w].mask, load(kTable.at[w].index),
                                       load64(p + start(w)));
    }
    return z;
  }
};

HS_INLINE __m256i join(__m128i a, __m128i b) {
  return _mm256_inserti128_si256(_mm256_castsi128_si256(a), b, 1);
}

// What a format gives for eight blocks of two rows. [2 rows][8 blocks]
struct Scales {
  __m512 d[2], m[2];  // [1]: for the second half of each block, where the format has halves
};

// The 16 bytes at p of each of eight blocks, as two registers of [2 fours][8 blocks][4 bytes].
template <int kStride>
HS_INLINE void load_nibbles(Bytes p, __m512i& fours01, __m512i& fours23) {
  const auto four = [](Bytes q) {
    __m512i z = _mm512_castsi128_si512(load16(q));
    z = _mm512_mask_broadcast_i32x4(z, 0x00F0, load16(q + kStride));
    z = _mm512_mask_broadcast_i32x4(z, 0x0F00, load16(q + 2 * kStride));
    return _mm512_mask_broadcast_i32x4(z, 0xF000, load16(q + 3 * kStride));
  };
  static constexpr auto k01 = per_lane([](int j, int b) { return 4 * b + j; });
  static constexpr auto k23 = per_lane([](int j, int b) { return 4 * b + 2 + j; });
  const __m512i low = four(p), high = four(p + 4 * kStride);
  fours01 = _mm512_permutex2var_epi32(low, load(k01), high);
  fours23 = _mm512_permutex2var_epi32(low, load(k23), high);
}

// d, and m behind it, of blocks kStride apart: two f16 vectors in the first 32 bytes.
template <int kStride>
constexpr auto kScaleAndMin = [](int i) {
  return i < 16 ? i / 2 * kStride + i % 2 : i < 32 ? (i - 16) / 2 * kStride + 2 + i % 2 : -1;
};
template <int kStride>
constexpr auto kScaleOnly = [](int i) { return i < 16 ? i / 2 * kStride + i % 2 : -1; };

template <int kStride, bool kMin>
HS_INLINE void load_scales(Bytes a, Bytes b, Scales& s) {
  if constexpr (kMin) {
    using C = Collect<8 * kStride, kScaleAndMin<kStride>>;
    const __m256i za = _mm512_castsi512_si256(C::of(a)), zb = _mm512_castsi512_si256(C::of(b));
    s.d[0] = _mm512_cvtph_ps(_mm256_permute2x128_si256(za, zb, 0x20));
    s.m[0] = _mm512_cvtph_ps(_mm256_permute2x128_si256(za, zb, 0x31));
  } else {
    using C = Collect<8 * kStride, kScaleOnly<kStride>>;
    s.d[0] =
        _mm512_cvtph_ps(join(_mm512_castsi512_si128(C::of(a)), _mm512_castsi512_si128(C::of(b))));
  }
}

// Four bits and one f16, or two.
template <int kBytes, int kQuantsAt, int kShift, bool kHasMin>
struct FourBits {
  static constexpr int kGroupBytes = 8 * kBytes, kOffsetShift = kShift;
  static constexpr bool kHalves = false, kMin = kHasMin;
  HS_INLINE static void values(Bytes p, __m512i w[4]) {
    const __m512i mask = _mm512_set1_epi8(15);
    __m512i a, b;
    load_nibbles<kBytes>(p + kQuantsAt, a, b);
    w[0] = _mm512_and_si512(a, mask);
    w[1] = _mm512_and_si512(b, mask);
    w[2] = _mm512_and_si512(_mm512_srli_epi16(a, 4), mask);
    w[3] = _mm512_and_si512(_mm512_srli_epi16(b, 4), mask);
  }
  HS_INLINE static void scales(Bytes a, Bytes b, Scales& s) {
    load_scales<kBytes, kHasMin>(a, b, s);
  }
};

using Q4_0 = FourBits<18, 2, 3, false>;
using Q4_1 = FourBits<20, 4, 0, true>;

struct Iq4Nl : Q4_0 {
  static constexpr int kOffsetShift = 7;
  HS_INLINE static void values(Bytes p, __m512i w[4]) {
    // The format's 16 values, plus 128.
    const __m512i values = _mm512_broadcast_i32x4(
        _mm_setr_epi8(1, 24, 45, 63, 79, 93, 106, 118, -127, -115, -103, -90, -75, -59, -39, -15));
    Q4_0::values(p, w);
    for (int i = 0; i < 4; ++i) w[i] = _mm512_shuffle_epi8(values, w[i]);
  }
};

// A fifth bit of each value, 32 in a word before the nibbles.
template <int kBytes, int kHighAt, int kShift, bool kHasMin>
struct FiveBits {
  static constexpr int kGroupBytes = 8 * kBytes, kOffsetShift = kShift;
  static constexpr bool kHalves = false, kMin = kHasMin;
  static constexpr auto kWords = [](int i) { return i % 32 / 4 * kBytes + kHighAt + i % 4; };
  // Bit 4 of a byte is to be the bit of value 4 * four + byte, of the lower or upper of two words.
  static constexpr Table<uint8_t> bit_at(int four) {
    Table<uint8_t> out{};
    for (int i = 0; i < 64; ++i)
      out.at[i] = static_cast<uint8_t>((32 * (i / 4 % 2) + 4 * (four + i / 32) + i % 4 - 4) & 63);
    return out;
  }
  static constexpr Table<uint8_t> kBitAt[4] = {bit_at(0), bit_at(2), bit_at(4), bit_at(6)};

  HS_INLINE static void values(Bytes p, __m512i w[4]) {
    FourBits<kBytes, kHighAt + 4, kShift, kHasMin>::values(p, w);
    const __m512i words = Collect<8 * kBytes, kWords>::of(p), bit = _mm512_set1_epi8(16);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const __m512i high = _mm512_multishift_epi64_epi8(load(kBitAt[i]), words);
      w[i] = _mm512_ternarylogic_epi64(w[i], high, bit, kAOrBAndC);
    }
  }
  HS_INLINE static void scales(Bytes a, Bytes b, Scales& s) {
    load_scales<kBytes, kHasMin>(a, b, s);
  }
};

using Q5_0 = FiveBits<22, 2, 4, false>;
using Q5_1 = FiveBits<24, 4, 0, true>;

struct Q8_0 {
  static constexpr int kGroupBytes = 8 * 34, kOffsetShift = 7;
  static constexpr bool kHalves = false, kMin = false;
  HS_INLINE static void values(Bytes p, __m512i w[4]) {
    const auto two = [p](int i) {
      return _mm512_inserti64x4(_mm512_castsi256_si512(load32(p + 2 + 34 * i)),
                                load32(p + 36 + 34 * i), 1);
    };
    // [4 fours][4 blocks] from four blocks, then [2 fours][8 blocks].
    static constexpr Table<int32_t> kLow = {
        {0, 8, 16, 24, 1, 9, 17, 25, 2, 10, 18, 26, 3, 11, 19, 27}};
    static constexpr Table<int32_t> kHigh = {
        {4, 12, 20, 28, 5, 13, 21, 29, 6, 14, 22, 30, 7, 15, 23, 31}};
    static constexpr Table<int64_t> kFirst = {{0, 1, 8, 9, 2, 3, 10, 11}};
    static constexpr Table<int64_t> kSecond = {{4, 5, 12, 13, 6, 7, 14, 15}};
    const __m512i z0 = two(0), z1 = two(2), z2 = two(4), z3 = two(6);
    const __m512i flip = _mm512_set1_epi8(-128);  // q + 128, without a sign
    const __m512i la = _mm512_xor_si512(flip, _mm512_permutex2var_epi32(z0, load(kLow), z1));
    const __m512i ha = _mm512_xor_si512(flip, _mm512_permutex2var_epi32(z0, load(kHigh), z1));
    const __m512i lb = _mm512_xor_si512(flip, _mm512_permutex2var_epi32(z2, load(kLow), z3));
    const __m512i hb = _mm512_xor_si512(flip, _mm512_permutex2var_epi32(z2, load(kHigh), z3));
    w[0] = _mm512_permutex2var_epi64(la, load(kFirst), lb);
    w[1] = _mm512_permutex2var_epi64(la, load(kSecond), lb);
    w[2] = _mm512_permutex2var_epi64(ha, load(kFirst), hb);
    w[3] = _mm512_permutex2var_epi64(ha, load(kSecond), hb);
  }
  HS_INLINE static void scales(Bytes a, Bytes b, Scales& s) { load_scales<34, false>(a, b, s); }
};

// The f16 of two rows. [2 rows][8 times the same]
HS_INLINE __m512 super_scale(Bytes a, Bytes b) {
  uint16_t ha, hb;
  std::memcpy(&ha, a, 2);
  std::memcpy(&hb, b, 2);
  return _mm512_cvtph_ps(
      join(_mm_set1_epi16(static_cast<short>(ha)), _mm_set1_epi16(static_cast<short>(hb))));
}

// Eight blocks of 32 with six bits of scale and minimum each.
template <bool kHasHigh>
struct Q45_K {
  static constexpr int kGroupBytes = kHasHigh ? 176 : 144, kOffsetShift = 0;
  static constexpr bool kHalves = false, kMin = true;

  // Block 2c has the low and block 2c + 1 the high nibbles of chunk c of 32 bytes.
  static constexpr Fours kFours = fours([](int four, int b) { return b / 2 * 8 + four; });
  static constexpr auto kNibbleShift = per_lane([](int, int b) { return b % 2 * 4; });
  // Bit b of a byte belongs to block b; rotated to bit 4.
  static constexpr Fours kHighFours = fours([](int four, int) { return four; });
  static constexpr auto kHighRotate = per_lane([](int, int b) { return (b - 4) & 31; });

  HS_INLINE static void values(Bytes p, __m512i w[4]) {
    Bytes q = p + (kHasHigh ? 48 : 16);
    const __m512i a = load64(q), b = load64(q + 64), mask = _mm512_set1_epi8(15);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const __m512i both = _mm512_permutex2var_epi32(a, load(kFours.at[i]), b);
      w[i] = _mm512_and_si512(_mm512_srlv_epi32(both, load(kNibbleShift)), mask);
    }
    if constexpr (kHasHigh) {
      const __m512i bits = _mm512_castsi256_si512(load32(p + 16)), bit = _mm512_set1_epi8(16);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const __m512i high = _mm512_rorv_epi32(
            _mm512_permutexvar_epi32(load(kHighFours.at[i]), bits), load(kHighRotate));
        w[i] = _mm512_ternarylogic_epi64(w[i], high, bit, kAOrBAndC);
      }
    }
  }

  // Of the 12 bytes s: scale j < 4 is the low six bits of s[j], minimum j those of s[j + 4]; for
  // j >= 4 they are the nibbles of s[j + 4], with the top two bits of s[j - 4] and s[j] above.
  HS_INLINE static void scales(Bytes a, Bytes b, Scales& s) {
    const __m256i packed = join(load16(a), load16(b));  // the 12 bytes start at byte 4
    const __m256i low_at = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(4, 5, 6, 7, 12, 13, 14, 15, 8, 9, 10, 11, 12, 13, 14, 15));
    const __m256i high_at = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(-1, -1, -1, -1, 4, 5, 6, 7, -1, -1, -1, -1, 8, 9, 10, 11));
    const __m256i low_mask = _mm256_setr_epi32(0x3F3F3F3F, 0x0F0F0F0F, 0x3F3F3F3F, 0x0F0F0F0F,
                                               0x3F3F3F3F, 0x0F0F0F0F, 0x3F3F3F3F, 0x0F0F0F0F);
    const __m256i shift = _mm256_setr_epi32(0, 0, 0, 4, 0, 0, 0, 4);
    const __m256i low =
        _mm256_and_si256(_mm256_srlv_epi32(_mm256_shuffle_epi8(packed, low_at), shift), low_mask);
    const __m256i high = _mm256_and_si256(
        _mm256_srli_epi16(_mm256_shuffle_epi8(packed, high_at), 2), _mm256_set1_epi8(0x30));
    // [2 rows][scales, minima] -> [scales, minima][2 rows]
    const __m256i six = _mm256_permute4x64_epi64(_mm256_or_si256(low, high), 0xD8);
    const __m512i sc = _mm512_cvtepu8_epi32(_mm256_castsi256_si128(six));
    const __m512i mn = _mm512_cvtepu8_epi32(_mm256_extracti128_si256(six, 1));
    s.d[0] = _mm512_mul_ps(super_scale(a, b), _mm512_cvtepi32_ps(sc));
    // The sign goes to the product, which is exact.
    s.m[0] = _mm512_mul_ps(super_scale(a + 2, b + 2),
                           _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_setzero_si512(), mn)));
  }
};

// [2 rows][8 blocks] for each half of the blocks, from sixteen scales of each row.
HS_INLINE void split_halves(__m512 a, __m512 b, __m512 out[2]) {
  static constexpr auto kEven = per_lane([](int j, int i) { return 16 * j + 2 * i; });
  static constexpr auto kOdd = per_lane([](int j, int i) { return 16 * j + 2 * i + 1; });
  out[0] = _mm512_permutex2var_ps(a, load(kEven), b);
  out[1] = _mm512_permutex2var_ps(a, load(kOdd), b);
}

HS_INLINE __m512 signed_floats(__m128i bytes) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
}

HS_INLINE __m512 half_at(Bytes p) {
  uint16_t h;
  std::memcpy(&h, p, 2);
  return _mm512_cvtph_ps(_mm256_set1_epi16(static_cast<short>(h)));
}

// Two bits of four blocks share a byte: chunk n of 32 bytes belongs to blocks 4n to 4n + 3.
struct TwoBits {
  static constexpr Fours kFours = fours([](int four, int b) { return b / 4 * 8 + four; });
};

struct Q6_K {
  static constexpr int kGroupBytes = 210, kOffsetShift = 5;
  static constexpr bool kHalves = true, kMin = false;

  // Blocks 4n + r: nibble r / 2 of chunk 2n + r % 2 of 32 bytes; two bits above from chunk n of the
  // high bits, at 2r, to be rotated to bit 4.
  static constexpr Fours kFours =
      fours([](int four, int b) { return (b / 4 * 2 + b % 2) * 8 + four; });
  static constexpr auto kNibbleShift = per_lane([](int, int b) { return b % 4 / 2 * 4; });
  static constexpr auto kHighRotate = per_lane([](int, int b) { return (b % 4 * 2 - 4) & 31; });

  HS_INLINE static void values(Bytes p, __m512i w[4]) {
    const __m512i a = load64(p), b = load64(p + 64), high = load64(p + 128);
    const __m512i low_bits = _mm512_set1_epi8(15), high_bits = _mm512_set1_epi8(0x30);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const __m512i low =
          _mm512_and_si512(_mm512_srlv_epi32(_mm512_permutex2var_epi32(a, load(kFours.at[i]), b),
                                             load(kNibbleShift)),
                           low_bits);
      const __m512i top = _mm512_rorv_epi32(
          _mm512_permutexvar_epi32(load(TwoBits::kFours.at[i]), high), load(kHighRotate));
      w[i] = _mm512_ternarylogic_epi64(low, top, high_bits, kAOrBAndC);
    }
  }
  HS_INLINE static void scales(Bytes a, Bytes b, Scales& s) {
    split_halves(_mm512_mul_ps(half_at(a + 208), signed_floats(load16(a + 192))),
                 _mm512_mul_ps(half_at(b + 208), signed_floats(load16(b + 192))), s.d);
  }
};

struct Q3_K {
  static constexpr int kGroupBytes = 110, kOffsetShift = 2;
  static constexpr bool kHalves = true, kMin = false;

  static constexpr auto kShift = per_lane([](int, int b) { return b % 4 * 2; });
  static constexpr auto kHighRotate = per_lane([](int, int b) { return (b - 2) & 31; });

  HS_INLINE static void values(Bytes p, __m512i w[4]) {
    const __m512i quants = load64(p + 32), high = _mm512_castsi256_si512(load32(p));
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const __m512i low = _mm512_and_si512(
          _mm512_srlv_epi32(_mm512_permutexvar_epi32(load(TwoBits::kFours.at[i]), quants),
                            load(kShift)),
          _mm512_set1_epi8(3));
      const __m512i top = _mm512_rorv_epi32(
          _mm512_permutexvar_epi32(load(Q45_K<true>::kHighFours.at[i]), high), load(kHighRotate));
      w[i] = _mm512_ternarylogic_epi64(low, top, _mm512_set1_epi8(4), kAOrBAndC);
    }
  }
  // Four low bits of the sixteen in bytes 0 to 7, two high ones in bytes 8 to 11.
  HS_INLINE static __m512 row_scales(Bytes p) {
    const __m128i packed = load16(p + 94);  // the 12 bytes start at byte 2, d follows
    const __m128i low = _mm_and_si128(
        _mm_srlv_epi32(
            _mm_shuffle_epi8(packed, _mm_setr_epi8(2, 3, 4, 5, 6, 7, 8, 9, 2, 3, 4, 5, 6, 7, 8, 9)),
            _mm_setr_epi32(0, 0, 4, 4)),
        _mm_set1_epi8(15));
    const __m128i high = _mm_and_si128(
        _mm_srlv_epi32(_mm_shuffle_epi8(packed, _mm_setr_epi8(10, 11, 12, 13, 10, 11, 12, 13, 10,
                                                              11, 12, 13, 10, 11, 12, 13)),
                       _mm_setr_epi32(0, 2, 4, 6)),
        _mm_set1_epi8(3));
    const __m128i six = _mm_or_si128(low, _mm_slli_epi16(high, 4));
    return _mm512_mul_ps(half_at(p + 108), signed_floats(_mm_sub_epi8(six, _mm_set1_epi8(32))));
  }
  HS_INLINE static void scales(Bytes a, Bytes b, Scales& s) {
    split_halves(row_scales(a), row_scales(b), s.d);
  }
};

struct Q2_K {
  static constexpr int kGroupBytes = 84, kOffsetShift = 0;
  static constexpr bool kHalves = true, kMin = true;

  HS_INLINE static void values(Bytes p, __m512i w[4]) {
    const __m512i quants = load64(p + 16);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const __m512i fours = _mm512_permutexvar_epi32(load(TwoBits::kFours.at[i]), quants);
      w[i] = _mm512_and_si512(_mm512_srlv_epi32(fours, load(Q3_K::kShift)), _mm512_set1_epi8(3));
    }
  }
  HS_INLINE static void scales(Bytes a, Bytes b, Scales& s) {
    const __m128i nibbles = _mm_set1_epi8(15), qa = load16(a), qb = load16(b);
    split_halves(_mm512_mul_ps(half_at(a + 80), signed_floats(_mm_and_si128(qa, nibbles))),
                 _mm512_mul_ps(half_at(b + 80), signed_floats(_mm_and_si128(qb, nibbles))), s.d);
    const auto minima = [nibbles](__m128i q) {
      const __m128i four = _mm_and_si128(_mm_srli_epi16(q, 4), nibbles);
      return signed_floats(_mm_sub_epi8(_mm_setzero_si128(), four));
    };
    split_halves(_mm512_mul_ps(half_at(a + 82), minima(qa)),
                 _mm512_mul_ps(half_at(b + 82), minima(qb)), s.m);
  }
};

HS_INLINE __m512i dot(__m512i sum, __m512i w, const int8_t* x) {
  return _mm512_dpbusd_epi32(sum, w, _mm512_load_si512(x));
}

// Sums of [2 fours][8 blocks] of two rows -> [2 rows][8 blocks].
HS_INLINE __m512i fold(__m512i a, __m512i b) {
  return _mm512_add_epi32(_mm512_shuffle_i64x2(a, b, 0x44), _mm512_shuffle_i64x2(a, b, 0xEE));
}

HS_INLINE __m512 both_rows(const float* p) { return _mm512_broadcast_f32x8(_mm256_load_ps(p)); }
HS_INLINE __m512i both_rows(const int32_t* p) {
  return _mm512_broadcast_i64x4(_mm256_load_si256(reinterpret_cast<const __m256i*>(p)));
}

// One group of two rows with one column. Lanes outside `mask` stay as they are.
template <class Format>
HS_INLINE __m512 add_group(const __m512i a[4], const __m512i b[4], const Scales& s,
                           const ColumnGroup& x, __mmask16 mask, __m512 acc) {
  const __m512 d = both_rows(x.d);
  const auto add = [&](__m512i sum, const int32_t* x_sum, int h) {
    if constexpr (Format::kOffsetShift > 0)
      sum = _mm512_sub_epi32(sum, _mm512_slli_epi32(both_rows(x_sum), Format::kOffsetShift));
    acc = _mm512_mask3_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_mul_ps(s.d[h], d), acc, mask);
  };
  const __m512i zero = _mm512_setzero_si512();
  const __m512i a0 = dot(dot(zero, a[0], x.q), a[1], x.q + 64);
  const __m512i b0 = dot(dot(zero, b[0], x.q), b[1], x.q + 64);
  if constexpr (!Format::kHalves) {
    add(fold(dot(dot(a0, a[2], x.q + 128), a[3], x.q + 192),
             dot(dot(b0, b[2], x.q + 128), b[3], x.q + 192)),
        x.int_sum, 0);
    if constexpr (Format::kMin) acc = _mm512_mask3_fmadd_ps(s.m[0], both_rows(x.sum), acc, mask);
  } else {
    add(fold(a0, b0), x.half_sum[0], 0);
    add(fold(dot(dot(zero, a[2], x.q + 128), a[3], x.q + 192),
             dot(dot(zero, b[2], x.q + 128), b[3], x.q + 192)),
        x.half_sum[1], 1);
    for (int h = 0; Format::kMin && h < 2; ++h) {
      const __m512 x_sum = _mm512_mul_ps(d, _mm512_cvtepi32_ps(both_rows(x.half_sum[h])));
      acc = _mm512_mask3_fmadd_ps(s.m[h], x_sum, acc, mask);
    }
  }
  return acc;
}

HS_INLINE float tree(__m256 acc) {
  const __m128 t = _mm_add_ps(_mm256_castps256_ps128(acc), _mm256_extractf128_ps(acc, 1));
  const __m128 u = _mm_add_ps(t, _mm_movehl_ps(t, t));
  return _mm_cvtss_f32(_mm_add_ss(u, _mm_movehdup_ps(u)));
}

// So far ahead because the hardware's own prefetching stops at the page's end.
template <int kSize>
HS_INLINE void prefetch(Bytes p) {
  constexpr int kAhead = 4096;
  for (int line = 0; line < kSize; line += 64)
    _mm_prefetch(reinterpret_cast<const char*>(p + kAhead + line), _MM_HINT_T0);
}

template <class Format, int kCols>
HS_INLINE void two_rows(Bytes a, Bytes b, size_t n_block, const uint8_t* end, const ColumnsView& x,
                        __m512 acc[kCols]) {
  constexpr int kGroupBytes = Format::kGroupBytes;
  uint8_t copy[2][kGroupBytes];
  const size_t n_group = (n_block + kGroupBlocks - 1) / kGroupBlocks;
#pragma GCC unroll 8
  for (int c = 0; c < kCols; ++c) acc[c] = _mm512_setzero_ps();
  for (size_t g = 0; g < n_group; ++g, a += kGroupBytes, b += kGroupBytes) {
    __mmask16 mask = 0xFFFF;
    const size_t n_left = n_block - g * kGroupBlocks;
    if (n_left < kGroupBlocks) {
      mask = static_cast<__mmask16>(((1u << n_left) - 1) * 0x0101);
      // What follows a row is the next one, which the mask leaves out; the last row has none.
      if (end - b < kGroupBytes) {
        std::memcpy(copy[0], a, n_left * kGroupBytes / kGroupBlocks);
        std::memcpy(copy[1], b, n_left * kGroupBytes / kGroupBlocks);
        a = copy[0];
        b = copy[1];
      }
    }
    prefetch<kGroupBytes>(a);
    prefetch<kGroupBytes>(b);
    __m512i wa[4], wb[4];
    Scales s;
    Format::values(a, wa);
    Format::values(b, wb);
    Format::scales(a, b, s);
#pragma GCC unroll 8
    for (int c = 0; c < kCols; ++c)
      acc[c] = add_group<Format>(wa, wb, s, x.groups[c][g], mask, acc[c]);
  }
}

template <class Format, int kCols>
void rows(const WeightMatrix& w, uint32_t row_first, uint32_t row_end, const ColumnsView& x,
          float* y, size_t y_stride) {
  const Bytes data = reinterpret_cast<Bytes>(w.data);
  const size_t n_block = w.n_col / kBlock;
  const uint8_t* end =
      data + (w.n_row - 1) * w.row_bytes + n_block * Format::kGroupBytes / kGroupBlocks;
  for (uint32_t r = row_first; r < row_end; r += 2) {
    const bool has_second = r + 1 < row_end;
    const Bytes a = data + r * w.row_bytes, b = has_second ? a + w.row_bytes : a;
    __m512 acc[kCols];
    two_rows<Format, kCols>(a, b, n_block, end, x, acc);
    for (int c = 0; c < kCols && c < static_cast<int>(x.n_col); ++c) {
      y[c * y_stride + r] = tree(_mm512_castps512_ps256(acc[c]));
      if (has_second) y[c * y_stride + r + 1] = tree(_mm512_extractf32x8_ps(acc[c], 1));
    }
  }
}

// Rows of floats: sixteen at a time, some of them past the end masked out.
struct F32 {
  static constexpr int kBytes = 4;
  HS_INLINE static __m512 at(Bytes p, __mmask16 mask) { return _mm512_maskz_loadu_ps(mask, p); }
};
struct F16 {
  static constexpr int kBytes = 2;
  HS_INLINE static __m512 at(Bytes p, __mmask16 mask) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, p));
  }
};
struct Bf16 {
  static constexpr int kBytes = 2;
  HS_INLINE static __m512 at(Bytes p, __mmask16 mask) {
    return _mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, p)), 16));
  }
};

template <class Format, int kCols>
void float_rows(const WeightMatrix& w, uint32_t row_first, uint32_t row_end, const ColumnsView& x,
                float* y, size_t y_stride) {
  for (uint32_t r = row_first; r < row_end; r += 2) {
    const bool has_second = r + 1 < row_end;
    const Bytes a = reinterpret_cast<Bytes>(w.data) + r * w.row_bytes;
    const Bytes b = has_second ? a + w.row_bytes : a;
    __m512 acc[2][kCols];
#pragma GCC unroll 8
    for (int c = 0; c < kCols; ++c) acc[0][c] = acc[1][c] = _mm512_setzero_ps();
    for (size_t i = 0; i < w.n_col; i += 16) {
      const size_t n_left = w.n_col - i;
      const auto mask = static_cast<__mmask16>(n_left < 16 ? (1u << n_left) - 1 : 0xFFFF);
      prefetch<16 * Format::kBytes>(a + i * Format::kBytes);
      prefetch<16 * Format::kBytes>(b + i * Format::kBytes);
      const __m512 wa = Format::at(a + i * Format::kBytes, mask);
      const __m512 wb = Format::at(b + i * Format::kBytes, mask);
#pragma GCC unroll 8
      for (int c = 0; c < kCols; ++c) {
        const __m512 v = _mm512_maskz_loadu_ps(mask, x.floats[c] + i);
        acc[0][c] = _mm512_mask3_fmadd_ps(wa, v, acc[0][c], mask);
        acc[1][c] = _mm512_mask3_fmadd_ps(wb, v, acc[1][c], mask);
      }
    }
    for (int c = 0; c < kCols && c < static_cast<int>(x.n_col); ++c) {
      for (int h = 0; h <= static_cast<int>(has_second); ++h) {
        y[c * y_stride + r + h] = tree(
            _mm256_add_ps(_mm512_castps512_ps256(acc[h][c]), _mm512_extractf32x8_ps(acc[h][c], 1)));
      }
    }
  }
}

template <class Format, int kCols>
void run(const WeightMatrix& w, uint32_t row_first, uint32_t row_end, const ColumnsView& x,
         float* y, size_t y_stride) {
  if constexpr (requires { Format::kGroupBytes; }) {
    rows<Format, kCols>(w, row_first, row_end, x, y, y_stride);
  } else {
    float_rows<Format, kCols>(w, row_first, row_end, x, y, y_stride);
  }
}

void matvec_avx512vnni(const WeightMatrix& w, uint32_t row_first, uint32_t row_end,
                       const ColumnsView& x, float* y, size_t y_stride) {
  const auto run_format = [&]<class Format>() {
    constexpr decltype(&run<Format, 1>) kKernels[kMaxColumns] = {
        run<Format, 1>, run<Format, 2>, run<Format, 3>, run<Format, 4>,
        run<Format, 6>, run<Format, 6>, run<Format, 8>, run<Format, 8>};
    kKernels[x.n_col - 1](w, row_first, row_end, x, y, y_stride);
  };
  with_format<F32, F16, Bf16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q45_K<false>, Q45_K<true>,
              Q6_K, Iq4Nl>(w.type, run_format);
}

}  // namespace

const MatvecTarget* avx512vnni_target() {
  static const MatvecTarget target = {"avx512vnni", ValueOrder::kInterleaved, quantize_avx2,
                                      matvec_avx512vnni};
  const bool can_run = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                       __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                       __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vbmi");
  return can_run ? &target : nullptr;
}

}  // namespace headstart::kernels

#endif  // __x86_64__
