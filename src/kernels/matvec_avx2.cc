// AVX2 with FMA and F16C, and the quantising of columns for all of x86.
//
// A lane of 32 bits holds a block: eight blocks of a row are unpacked to eight registers of
// [8 blocks][4 values], which meet the interleaved column without any sum across lanes.
#include "kernels/matvec_targets.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <cstring>

namespace headstart::kernels {
namespace {

#define HS_INLINE [[gnu::always_inline]] inline

using Bytes = const uint8_t*;

HS_INLINE __m128i load16(Bytes p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
HS_INLINE __m256i load32(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
HS_INLINE __m256i load16x2(Bytes low, Bytes high) {
  return _mm256_inserti128_si256(_mm256_castsi128_si256(load16(low)), load16(high), 1);
}
HS_INLINE short word_at(Bytes p) {
  short v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}
HS_INLINE int dword_at(Bytes p) {
  int v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}
HS_INLINE __m256 half_at(Bytes p) { return _mm256_cvtph_ps(_mm_set1_epi16(word_at(p))); }

// The f16 at p of eight blocks.
template <int kStride>
HS_INLINE __m256 halves_at(Bytes p) {
  return _mm256_cvtph_ps(_mm_setr_epi16(word_at(p), word_at(p + kStride), word_at(p + 2 * kStride),
                                        word_at(p + 3 * kStride), word_at(p + 4 * kStride),
                                        word_at(p + 5 * kStride), word_at(p + 6 * kStride),
                                        word_at(p + 7 * kStride)));
}

// The four words at p of eight blocks, transposed. [4][8 blocks]
template <int kStride>
HS_INLINE void load_words(Bytes p, __m256i w[4]) {
  const __m256i z0 = load16x2(p, p + 4 * kStride);
  const __m256i z1 = load16x2(p + kStride, p + 5 * kStride);
  const __m256i z2 = load16x2(p + 2 * kStride, p + 6 * kStride);
  const __m256i z3 = load16x2(p + 3 * kStride, p + 7 * kStride);
  const __m256i a = _mm256_unpacklo_epi32(z0, z1), b = _mm256_unpacklo_epi32(z2, z3);
  const __m256i c = _mm256_unpackhi_epi32(z0, z1), d = _mm256_unpackhi_epi32(z2, z3);
  w[0] = _mm256_unpacklo_epi64(a, b);
  w[1] = _mm256_unpackhi_epi64(a, b);
  w[2] = _mm256_unpacklo_epi64(c, d);
  w[3] = _mm256_unpackhi_epi64(c, d);
}

// [1]: for the second half of each block, where the format has halves.
struct Scales {
  __m256 d[2], m[2];
};

// A format gives w as unsigned values, of which kOffset is to be subtracted, or as signed ones.
// kSums: how many sums of two products of a byte of w and one of x fit 16 bits together.
template <int kBytes, int kQuantsAt, int kOffsetOf, bool kHasMin>
struct FourBits {
  static constexpr int kGroupBytes = 8 * kBytes, kOffset = kOffsetOf, kSums = 8;
  static constexpr bool kSigned = false, kHalves = false, kMin = kHasMin;
  HS_INLINE static void values(Bytes p, __m256i w[8]) {
    const __m256i mask = _mm256_set1_epi8(15);
    load_words<kBytes>(p + kQuantsAt, w);
    for (int i = 0; i < 4; ++i) {
      w[i + 4] = _mm256_and_si256(_mm256_srli_epi16(w[i], 4), mask);
      w[i] = _mm256_and_si256(w[i], mask);
    }
  }
  HS_INLINE static void scales(Bytes p, Scales& s) {
    s.d[0] = halves_at<kBytes>(p);
    if constexpr (kHasMin) s.m[0] = halves_at<kBytes>(p + 2);
  }
};

using Q4_0 = FourBits<18, 2, 8, false>;
using Q4_1 = FourBits<20, 4, 0, true>;

struct Iq4Nl : Q4_0 {
  static constexpr int kOffset = 0, kSums = 1;
  static constexpr bool kSigned = true;
  HS_INLINE static void values(Bytes p, __m256i w[8]) {
    const __m256i values = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113));
    Q4_0::values(p, w);
    for (int i = 0; i < 8; ++i) w[i] = _mm256_shuffle_epi8(values, w[i]);
  }
};

// A fifth bit of each value, 32 in a word before the nibbles.
template <int kBytes, int kHighAt, int kOffsetOf, bool kHasMin>
struct FiveBits : FourBits<kBytes, kHighAt + 4, kOffsetOf, kHasMin> {
  static constexpr int kSums = 4;
  HS_INLINE static void values(Bytes p, __m256i w[8]) {
    FourBits<kBytes, kHighAt + 4, kOffsetOf, kHasMin>::values(p, w);
    Bytes h = p + kHighAt;
    const __m256i words = _mm256_setr_epi32(dword_at(h), dword_at(h + kBytes),
                                            dword_at(h + 2 * kBytes), dword_at(h + 3 * kBytes),
                                            dword_at(h + 4 * kBytes), dword_at(h + 5 * kBytes),
                                            dword_at(h + 6 * kBytes), dword_at(h + 7 * kBytes));
    const __m256i of_word = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12));
    const __m256i low_bits = _mm256_set1_epi32(0x08040201);
    const __m256i high_bits = _mm256_set1_epi32(static_cast<int>(0x80402010));
    const __m256i sixteen = _mm256_set1_epi8(16);
    for (int i = 0; i < 8; ++i) {
      // Every byte of a lane: the byte of the word that has the bits of these four values.
      const __m256i byte = _mm256_shuffle_epi8(
          words, _mm256_add_epi8(of_word, _mm256_set1_epi8(static_cast<char>(i / 2))));
      const __m256i bits = i % 2 == 0 ? low_bits : high_bits;
      const __m256i is_set = _mm256_cmpeq_epi8(_mm256_and_si256(byte, bits), bits);
      w[i] = _mm256_or_si256(w[i], _mm256_and_si256(is_set, sixteen));
    }
  }
};

using Q5_0 = FiveBits<22, 2, 16, false>;
using Q5_1 = FiveBits<24, 4, 0, true>;

struct Q8_0 {
  static constexpr int kGroupBytes = 8 * 34, kOffset = 0, kSums = 1;
  static constexpr bool kSigned = true, kHalves = false, kMin = false;
  HS_INLINE static void values(Bytes p, __m256i w[8]) {
    load_words<34>(p + 2, w);
    load_words<34>(p + 18, w + 4);
  }
  HS_INLINE static void scales(Bytes p, Scales& s) { s.d[0] = halves_at<34>(p); }
};

HS_INLINE __m256 unsigned_floats(__m128i bytes) {
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
}
HS_INLINE __m256 negative(__m256 v) { return _mm256_xor_ps(v, _mm256_set1_ps(-0.0f)); }

template <bool kHasHigh>
struct Q45_K {
  static constexpr int kGroupBytes = kHasHigh ? 176 : 144, kOffset = 0, kSums = kHasHigh ? 4 : 8;
  static constexpr bool kSigned = false, kHalves = false, kMin = true;

  // Block 2c has the low and block 2c + 1 the high nibbles of chunk c of 32 bytes; bit b of byte v
  // of the high bits is that of value v of block b.
  HS_INLINE static void values(Bytes p, __m256i w[8]) {
    const __m256i mask = _mm256_set1_epi8(15), shift = _mm256_setr_epi32(0, 4, 0, 4, 0, 4, 0, 4);
    for (int half = 0; half < 2; ++half) {
      Bytes q = p + (kHasHigh ? 48 : 16) + 16 * half;
      const __m256 u = _mm256_castsi256_ps(load16x2(q, q + 64));
      const __m256 v = _mm256_castsi256_ps(load16x2(q + 32, q + 96));
      __m256i* out = w + 4 * half;
      out[0] = _mm256_castps_si256(_mm256_shuffle_ps(u, v, 0x00));
      out[1] = _mm256_castps_si256(_mm256_shuffle_ps(u, v, 0x55));
      out[2] = _mm256_castps_si256(_mm256_shuffle_ps(u, v, 0xAA));
      out[3] = _mm256_castps_si256(_mm256_shuffle_ps(u, v, 0xFF));
    }
    for (int i = 0; i < 8; ++i) {
      w[i] = _mm256_and_si256(_mm256_srlv_epi32(w[i], shift), mask);
      if constexpr (kHasHigh) {
        const __m256i bits = _mm256_srlv_epi32(_mm256_set1_epi32(dword_at(p + 16 + 4 * i)),
                                               _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
        w[i] = _mm256_or_si256(w[i],
                               _mm256_slli_epi16(_mm256_and_si256(bits, _mm256_set1_epi8(1)), 4));
      }
    }
  }

  // Of the 12 bytes s: scale j < 4 is the low six bits of s[j], minimum j those of s[j + 4]; for
  // j >= 4 they are the nibbles of s[j + 4], with the top two bits of s[j - 4] and s[j] above.
  HS_INLINE static void scales(Bytes p, Scales& s) {
    const __m128i packed = load16(p);  // the 12 bytes start at byte 4
    const __m128i low = _mm_and_si128(
        _mm_srlv_epi32(_mm_shuffle_epi8(packed, _mm_setr_epi8(4, 5, 6, 7, 12, 13, 14, 15, 8, 9, 10,
                                                              11, 12, 13, 14, 15)),
                       _mm_setr_epi32(0, 0, 0, 4)),
        _mm_setr_epi32(0x3F3F3F3F, 0x0F0F0F0F, 0x3F3F3F3F, 0x0F0F0F0F));
    const __m128i high = _mm_and_si128(
        _mm_srli_epi16(_mm_shuffle_epi8(packed, _mm_setr_epi8(-1, -1, -1, -1, 4, 5, 6, 7, -1, -1,
                                                              -1, -1, 8, 9, 10, 11)),
                       2),
        _mm_set1_epi8(0x30));
    const __m128i six = _mm_or_si128(low, high);
    s.d[0] = _mm256_mul_ps(half_at(p), unsigned_floats(six));
    s.m[0] = negative(_mm256_mul_ps(half_at(p + 2), unsigned_floats(_mm_srli_si128(six, 8))));
  }
};

// Sixteen scales, two for each block -> [halves][8 blocks], times d.
HS_INLINE void split_halves(__m256 d, __m128i bytes, __m256 out[2]) {
  const __m128i split =
      _mm_shuffle_epi8(bytes, _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15));
  out[0] = _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(split)));
  out[1] = _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(split, 8))));
}

// Blocks 4n + r have their two bits at 2r of chunk n of 32 bytes. [8 fours][8 blocks]
HS_INLINE void load_two_bits(Bytes p, __m256i w[8]) {
  const __m256i shift = _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6), mask = _mm256_set1_epi8(3);
  for (int half = 0; half < 2; ++half) {
    const __m256i chunks = load16x2(p + 16 * half, p + 32 + 16 * half);
    __m256i* out = w + 4 * half;
    out[0] = _mm256_shuffle_epi32(chunks, 0x00);
    out[1] = _mm256_shuffle_epi32(chunks, 0x55);
    out[2] = _mm256_shuffle_epi32(chunks, 0xAA);
    out[3] = _mm256_shuffle_epi32(chunks, 0xFF);
  }
  for (int i = 0; i < 8; ++i) w[i] = _mm256_and_si256(_mm256_srlv_epi32(w[i], shift), mask);
}

struct Q6_K {
  static constexpr int kGroupBytes = 210, kOffset = 32, kSums = 2;
  static constexpr bool kSigned = false, kHalves = true, kMin = false;

  // Low bits of block 4n + r: nibble r / 2 of chunk 2n + r % 2 of 32 bytes.
  HS_INLINE static void values(Bytes p, __m256i w[8]) {
    const __m256i mask = _mm256_set1_epi8(15), shift = _mm256_setr_epi32(0, 0, 4, 4, 0, 0, 4, 4);
    load_two_bits(p + 128, w);
    for (int i = 0; i < 8; i += 2) {
      Bytes q = p + i / 4 * 16;
      const __m256i u = load16x2(q, q + 64), v = load16x2(q + 32, q + 96);
      const __m256i both = i % 4 == 0 ? _mm256_unpacklo_epi32(u, v) : _mm256_unpackhi_epi32(u, v);
      const __m256i even = _mm256_unpacklo_epi64(both, both);
      const __m256i odd = _mm256_unpackhi_epi64(both, both);
      w[i] = _mm256_or_si256(_mm256_slli_epi16(w[i], 4),
                             _mm256_and_si256(_mm256_srlv_epi32(even, shift), mask));
      w[i + 1] = _mm256_or_si256(_mm256_slli_epi16(w[i + 1], 4),
                                 _mm256_and_si256(_mm256_srlv_epi32(odd, shift), mask));
    }
  }
  HS_INLINE static void scales(Bytes p, Scales& s) {
    split_halves(half_at(p + 208), load16(p + 192), s.d);
  }
};

struct Q3_K {
  static constexpr int kGroupBytes = 110, kOffset = 4, kSums = 4;
  static constexpr bool kSigned = false, kHalves = true, kMin = false;

  HS_INLINE static void values(Bytes p, __m256i w[8]) {
    load_two_bits(p + 32, w);
    for (int i = 0; i < 8; ++i) {  // bit b of byte v is the third of value v of block b
      const __m256i bits = _mm256_srlv_epi32(_mm256_set1_epi32(dword_at(p + 4 * i)),
                                             _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
      w[i] =
          _mm256_or_si256(w[i], _mm256_slli_epi16(_mm256_and_si256(bits, _mm256_set1_epi8(1)), 2));
    }
  }
  // Four low bits of the sixteen in bytes 0 to 7, two high ones in bytes 8 to 11.
  HS_INLINE static void scales(Bytes p, Scales& s) {
    const __m128i packed = load16(p + 94);  // the 12 bytes start at byte 2, d follows
    const __m128i low = _mm_and_si128(
        _mm_srlv_epi32(
            _mm_shuffle_epi8(packed, _mm_setr_epi8(2, 3, 4, 5, 6, 7, 8, 9, 2, 3, 4, 5, 6, 7, 8, 9)),
            _mm_setr_epi32(0, 0, 4, 4)),
        _mm_set1_epi8(15));
    const __m128i high =
        _mm_and_si128(_mm_srlv_epi32(_mm_set1_epi32(dword_at(p + 104)), _mm_setr_epi32(0, 2, 4, 6)),
                      _mm_set1_epi8(3));
    const __m128i six = _mm_or_si128(low, _mm_slli_epi16(high, 4));
    split_halves(half_at(p + 108), _mm_sub_epi8(six, _mm_set1_epi8(32)), s.d);
  }
};

struct Q2_K {
  static constexpr int kGroupBytes = 84, kOffset = 0, kSums = 4;
  static constexpr bool kSigned = false, kHalves = true, kMin = true;

  HS_INLINE static void values(Bytes p, __m256i w[8]) { load_two_bits(p + 16, w); }
  HS_INLINE static void scales(Bytes p, Scales& s) {
    const __m128i packed = load16(p), nibbles = _mm_set1_epi8(15);
    split_halves(half_at(p + 80), _mm_and_si128(packed, nibbles), s.d);
    split_halves(negative(half_at(p + 82)), _mm_and_si128(_mm_srli_epi16(packed, 4), nibbles), s.m);
  }
};

// Integer dots of registers kFirst to kFirst + kCount. [8 blocks]
template <class Format, int kFirst, int kCount>
HS_INLINE __m256i dots(const __m256i w[8], const int8_t* x) {
  static_assert(kCount % Format::kSums == 0);
  __m256i sum = _mm256_setzero_si256();
  for (int i = kFirst; i < kFirst + kCount; i += Format::kSums) {
    __m256i pairs = _mm256_setzero_si256();
    for (int k = i; k < i + Format::kSums; ++k) {
      const __m256i v = load32(x + 32 * k);
      pairs = _mm256_add_epi16(
          pairs, Format::kSigned
                     ? _mm256_maddubs_epi16(_mm256_abs_epi8(w[k]), _mm256_sign_epi8(v, w[k]))
                     : _mm256_maddubs_epi16(w[k], v));
    }
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
  return sum;
}

// One group with one column. Lanes outside `mask` stay as they are.
template <class Format>
HS_INLINE __m256 add_group(const __m256i w[8], const Scales& s, const ColumnGroup& x, __m256 mask,
                           __m256 acc) {
  const __m256 d = _mm256_load_ps(x.d);
  __m256 sum = acc;
  const auto add = [&](__m256i dot, const int32_t* x_sum, int h) {
    if constexpr (Format::kOffset > 0) {
      constexpr int kShift = __builtin_ctz(Format::kOffset);
      dot = _mm256_sub_epi32(dot, _mm256_slli_epi32(load32(x_sum), kShift));
    }
    sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), _mm256_mul_ps(s.d[h], d), sum);
  };
  if constexpr (!Format::kHalves) {
    add(dots<Format, 0, 8>(w, x.q), x.int_sum, 0);
    if constexpr (Format::kMin) sum = _mm256_fmadd_ps(s.m[0], _mm256_load_ps(x.sum), sum);
  } else {
    add(dots<Format, 0, 4>(w, x.q), x.half_sum[0], 0);
    add(dots<Format, 4, 4>(w, x.q), x.half_sum[1], 1);
    for (int h = 0; Format::kMin && h < 2; ++h) {
      const __m256 x_sum = _mm256_mul_ps(d, _mm256_cvtepi32_ps(load32(x.half_sum[h])));
      sum = _mm256_fmadd_ps(s.m[h], x_sum, sum);
    }
  }
  return _mm256_blendv_ps(acc, sum, mask);
}

HS_INLINE float tree(__m256 acc) {
  const __m128 t = _mm_add_ps(_mm256_castps256_ps128(acc), _mm256_extractf128_ps(acc, 1));
  const __m128 u = _mm_add_ps(t, _mm_movehl_ps(t, t));
  return _mm_cvtss_f32(_mm_add_ss(u, _mm_movehdup_ps(u)));
}

// The first n of eight lanes.
HS_INLINE __m256i first_lanes(size_t n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n < 8 ? n : 8)),
                            _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

// So far ahead because the hardware's own prefetching stops at the page's end.
template <int kSize>
HS_INLINE void prefetch(Bytes p) {
  constexpr int kAhead = 4096;
  for (int line = 0; line < kSize; line += 64)
    _mm_prefetch(reinterpret_cast<const char*>(p + kAhead + line), _MM_HINT_T0);
}

template <class Format, int kCols>
void rows(const WeightMatrix& w, uint32_t row_first, uint32_t row_end, const ColumnsView& x,
          float* y, size_t y_stride) {
  constexpr int kGroupBytes = Format::kGroupBytes;
  uint8_t copy[kGroupBytes];
  const size_t n_block = w.n_col / kBlock;
  const Bytes data = reinterpret_cast<Bytes>(w.data);
  const Bytes end = data + (w.n_row - 1) * w.row_bytes + n_block * kGroupBytes / kGroupBlocks;
  for (uint32_t r = row_first; r < row_end; ++r) {
    Bytes p = data + r * w.row_bytes;
    __m256 acc[kCols];
#pragma GCC unroll 8
    for (int c = 0; c < kCols; ++c) acc[c] = _mm256_setzero_ps();
    for (size_t b = 0, g = 0; b < n_block; b += kGroupBlocks, ++g, p += kGroupBytes) {
      // What follows a row is the next one, which the mask leaves out; the last row has none.
      if (end - p < kGroupBytes) {
        std::memcpy(copy, p, (n_block - b) * kGroupBytes / kGroupBlocks);
        p = copy;
      }
      prefetch<kGroupBytes>(p);
      const __m256 mask = _mm256_castsi256_ps(first_lanes(n_block - b));
      __m256i values[8];
      Scales s;
      Format::values(p, values);
      Format::scales(p, s);
#pragma GCC unroll 8
      for (int c = 0; c < kCols; ++c)
        acc[c] = add_group<Format>(values, s, x.groups[c][g], mask, acc[c]);
    }
    for (int c = 0; c < kCols && c < static_cast<int>(x.n_col); ++c)
      y[c * y_stride + r] = tree(acc[c]);
  }
}

// Rows of floats: eight at a time; what lies past the end is read as zero.
struct F32 {
  static constexpr int kBytes = 4;
  HS_INLINE static __m256 at(Bytes p) { return _mm256_loadu_ps(reinterpret_cast<const float*>(p)); }
};
struct F16 {
  static constexpr int kBytes = 2;
  HS_INLINE static __m256 at(Bytes p) { return _mm256_cvtph_ps(load16(p)); }
};
struct Bf16 {
  static constexpr int kBytes = 2;
  HS_INLINE static __m256 at(Bytes p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load16(p)), 16));
  }
};

template <class Format>
HS_INLINE float float_row(Bytes row, const float* x, size_t n) {
  __m256 acc[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
  size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    prefetch<16 * Format::kBytes>(row + i * Format::kBytes);
    for (size_t h = 0; h < 2; ++h) {
      acc[h] = _mm256_fmadd_ps(Format::at(row + (i + 8 * h) * Format::kBytes),
                               _mm256_loadu_ps(x + i + 8 * h), acc[h]);
    }
  }
  for (size_t h = 0; i < n; i += 8, ++h) {
    const size_t n_left = n - i < 8 ? n - i : 8;
    uint8_t copy[8 * Format::kBytes] = {};
    std::memcpy(copy, row + i * Format::kBytes, n_left * Format::kBytes);
    const __m256i mask = first_lanes(n_left);
    const __m256 sum = _mm256_fmadd_ps(Format::at(copy), _mm256_maskload_ps(x + i, mask), acc[h]);
    acc[h] = _mm256_blendv_ps(acc[h], sum, _mm256_castsi256_ps(mask));
  }
  return tree(_mm256_add_ps(acc[0], acc[1]));
}

template <class Format, int kCols>
void run(const WeightMatrix& w, uint32_t row_first, uint32_t row_end, const ColumnsView& x,
         float* y, size_t y_stride) {
  if constexpr (requires { Format::kGroupBytes; }) {
    rows<Format, kCols>(w, row_first, row_end, x, y, y_stride);
  } else {
    for (uint32_t r = row_first; r < row_end; ++r) {
      const Bytes row = reinterpret_cast<Bytes>(w.data) + r * w.row_bytes;
      for (uint32_t c = 0; c < x.n_col; ++c)
        y[c * y_stride + r] = float_row<Format>(row, x.floats[c], w.n_col);
    }
  }
}

void matvec_avx2(const WeightMatrix& w, uint32_t row_first, uint32_t row_end, const ColumnsView& x,
                 float* y, size_t y_stride) {
  const auto run_format = [&]<class Format>() {
    constexpr decltype(&run<Format, 1>) kKernels[kMaxColumns] = {
        run<Format, 1>, run<Format, 2>, run<Format, 3>, run<Format, 4>,
        run<Format, 6>, run<Format, 6>, run<Format, 8>, run<Format, 8>};
    kKernels[x.n_col - 1](w, row_first, row_end, x, y, y_stride);
  };
  with_format<F32, F16, Bf16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q45_K<false>, Q45_K<true>,
              Q6_K, Iq4Nl>(w.type, run_format);
}

HS_INLINE int largest_of(const float* x) {
  __m256i largest = _mm256_setzero_si256();
  for (int i = 0; i < 4; ++i)
    largest = _mm256_max_epu32(largest,
                               _mm256_and_si256(load32(x + 8 * i), _mm256_set1_epi32(kMagnitude)));
  const __m128i a =
      _mm_max_epu32(_mm256_castsi256_si128(largest), _mm256_extracti128_si256(largest, 1));
  const __m128i b = _mm_max_epu32(a, _mm_shuffle_epi32(a, 0xEE));
  return _mm_cvtsi128_si32(_mm_max_epu32(b, _mm_shuffle_epi32(b, 0x55)));
}

// column_scale() of eight blocks; returns the inverse, 0 where a block has no values.
HS_INLINE __m256 column_scales(__m256i largest, float* d) {
  const __m256 magnitude = _mm256_castsi256_ps(largest), k127 = _mm256_set1_ps(127);
  const __m256 is_bad =
      _mm256_castsi256_ps(_mm256_cmpgt_epi32(largest, _mm256_set1_epi32(kInfinityBits - 1)));
  const __m256 is_small = _mm256_cmp_ps(magnitude, _mm256_set1_ps(kSmallestMagnitude), _CMP_LT_OQ);
  const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7FC00000));
  _mm256_store_ps(
      d, _mm256_blendv_ps(_mm256_andnot_ps(is_small, _mm256_div_ps(magnitude, k127)), nan, is_bad));
  return _mm256_andnot_ps(_mm256_or_ps(is_small, is_bad), _mm256_div_ps(k127, magnitude));
}

// 32 values, rounded, to block b.
HS_INLINE void round_block(const float* x, float inverse, ColumnGroup& out, int b) {
  __m256i q[4];
  for (int i = 0; i < 4; ++i) {
    q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), _mm256_set1_ps(inverse)));
    if (inverse == 0) q[i] = _mm256_setzero_si256();  // 0 * NaN is no integer
  }
  // Packing works in halves of registers; the fours come out as 0, 2, 4, 6, 1, 3, 5, 7.
  const __m256i bytes =
      _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
  alignas(32) int32_t fours[8];
  _mm256_store_si256(reinterpret_cast<__m256i*>(fours), bytes);
  for (int i = 0; i < 8; ++i)
    std::memcpy(out.q + 32 * (i < 4 ? 2 * i : 2 * i - 7) + 4 * b, fours + i, 4);
}

void quantize_group(const float* x, ColumnGroup& out) {
  alignas(32) int largest[kGroupBlocks];
  alignas(32) float inverse[kGroupBlocks];
  for (int b = 0; b < 8; ++b) largest[b] = largest_of(x + 32 * b);
  _mm256_store_ps(inverse, column_scales(load32(largest), out.d));
  for (int b = 0; b < 8; ++b) round_block(x + 32 * b, inverse[b], out, b);
  __m256i half[2];
  for (int h = 0; h < 2; ++h) {
    half[h] = _mm256_setzero_si256();
    for (int i = 4 * h; i < 4 * h + 4; ++i) {
      const __m256i twos = _mm256_maddubs_epi16(_mm256_set1_epi8(1), load32(out.q + 32 * i));
      half[h] = _mm256_add_epi32(half[h], _mm256_madd_epi16(twos, _mm256_set1_epi16(1)));
    }
    _mm256_store_si256(reinterpret_cast<__m256i*>(out.half_sum[h]), half[h]);
  }
  const __m256i sum = _mm256_add_epi32(half[0], half[1]);
  _mm256_store_si256(reinterpret_cast<__m256i*>(out.int_sum), sum);
  _mm256_store_ps(out.sum, _mm256_mul_ps(_mm256_load_ps(out.d), _mm256_cvtepi32_ps(sum)));
}

}  // namespace

void quantize_avx2(const float* x, size_t n_value, ColumnGroup* out) {
  size_t first = 0;
  for (; first + kGroup <= n_value; first += kGroup) quantize_group(x + first, *out++);
  if (first < n_value) {
    float last[kGroup] = {};
    std::memcpy(last, x + first, (n_value - first) * sizeof(float));
    quantize_group(last, *out);
  }
}

const MatvecTarget* avx2_target() {
  static const MatvecTarget target = {"avx2", ValueOrder::kInterleaved, quantize_avx2, matvec_avx2};
  const bool can_run = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                       __builtin_cpu_supports("f16c");
  return can_run ? &target : nullptr;
}

}  // namespace headstart::kernels
#endif  // __x86_64__
