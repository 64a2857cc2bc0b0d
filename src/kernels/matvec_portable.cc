// The fall-back in plain C++, and what every instruction set must equal to the bit.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/matvec_targets.h"

namespace headstart::kernels {
namespace {

// Weight i of a block of 32 is d[i / 16] * q[i] + m[i / 16]; formats with one scale fill both.
struct BlockValues {
  int8_t q[kBlock];
  float d[2];
  float m[2];
};

float half_at(const uint8_t* p) {
  const uint32_t h = p[0] | p[1] << 8, magnitude = h & 0x7FFF;
  uint32_t bits = magnitude << 13;
  if (magnitude >= 0x7C00) {
    bits += 0x70000000;  // infinity and NaN
  } else if (magnitude >= 0x0400) {
    bits += 0x38000000;
  } else {  // below the normal range: the number of steps of 2^-24
    bits = std::bit_cast<uint32_t>(static_cast<float>(magnitude) * 0x1p-24f);
  }
  return std::bit_cast<float>(bits | (h & 0x8000) << 16);
}

float bf16_at(const uint8_t* p) {
  return std::bit_cast<float>(static_cast<uint32_t>(p[0] << 16 | p[1] << 24));
}

float f32_at(const uint8_t* p) {
  float f;
  std::memcpy(&f, p, sizeof(f));
  return f;
}

int nibble(const uint8_t* q, int i) { return i < 16 ? q[i] & 15 : q[i - 16] >> 4; }
int bit(const uint8_t* bits, int i) { return bits[i / 8] >> i % 8 & 1; }

// Four and five bits; the parts lie at these bytes of the block, -1: there is none.
template <int kBytes, int kMinAt, int kHighAt, int kQuantsAt, int kOffset>
void small_block(const uint8_t* row, size_t b, BlockValues& out) {
  const uint8_t* p = row + b * kBytes;
  out.d[0] = half_at(p);
  if (kMinAt >= 0) out.m[0] = half_at(p + std::max(kMinAt, 0));
  for (int i = 0; i < 32; ++i) {
    const int high = kHighAt >= 0 ? bit(p + std::max(kHighAt, 0), i) << 4 : 0;
    out.q[i] = static_cast<int8_t>((nibble(p + kQuantsAt, i) | high) - kOffset);
  }
}

constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                   1,    13,   25,  38,  53,  69,  89,  113};

void iq4_nl_block(const uint8_t* row, size_t b, BlockValues& out) {
  const uint8_t* p = row + b * 18;
  out.d[0] = half_at(p);
  for (int i = 0; i < 32; ++i) out.q[i] = kIq4Values[nibble(p + 2, i)];
}

void q8_0_block(const uint8_t* row, size_t b, BlockValues& out) {
  const uint8_t* p = row + b * 34;
  out.d[0] = half_at(p);
  std::memcpy(out.q, p + 2, 32);
}

// Six bits for scale and minimum of block j of 8, packed in 12 bytes.
void q4_k_scales(const uint8_t* s, int j, int& scale, int& min) {
  if (j < 4) {
    scale = s[j] & 63;
    min = s[j + 4] & 63;
  } else {
    scale = (s[j + 4] & 15) | s[j - 4] >> 6 << 4;
    min = s[j + 4] >> 4 | s[j] >> 6 << 4;
  }
}

template <bool kHasHigh>
void q45_k_block(const uint8_t* row, size_t b, BlockValues& out) {
  const uint8_t* p = row + b / 8 * (kHasHigh ? 176 : 144);
  const int j = static_cast<int>(b % 8);
  int scale, min;
  q4_k_scales(p + 4, j, scale, min);
  out.d[0] = half_at(p) * static_cast<float>(scale);
  out.m[0] = -(half_at(p + 2) * static_cast<float>(min));
  const uint8_t *high = p + 16, *q = p + (kHasHigh ? 48 : 16) + 32 * (j / 2);
  for (int i = 0; i < 32; ++i) {
    const int low = q[i] >> 4 * (j % 2) & 15;
    out.q[i] = static_cast<int8_t>(kHasHigh ? low | (high[i] >> j & 1) << 4 : low);
  }
}

void q6_k_block(const uint8_t* row, size_t b, BlockValues& out) {
  const uint8_t* p = row + b / 8 * 210;
  const int j = static_cast<int>(b % 8), n = j / 4, r = j % 4;
  const uint8_t *low = p + 64 * n + 32 * (r & 1), *high = p + 128 + 32 * n;
  for (int i = 0; i < 32; ++i) {
    const int q = (low[i] >> 4 * (r / 2) & 15) | (high[i] >> 2 * r & 3) << 4;
    out.q[i] = static_cast<int8_t>(q - 32);
  }
  for (int h = 0; h < 2; ++h)
    out.d[h] = half_at(p + 208) * static_cast<float>(static_cast<int8_t>(p[192 + 2 * j + h]));
}

void q3_k_block(const uint8_t* row, size_t b, BlockValues& out) {
  const uint8_t* p = row + b / 8 * 110;
  const int j = static_cast<int>(b % 8), n = j / 4, r = j % 4;
  const uint8_t* low = p + 32 + 32 * n;
  for (int i = 0; i < 32; ++i) {
    const int q = (low[i] >> 2 * r & 3) | (p[i] >> j & 1) << 2;
    out.q[i] = static_cast<int8_t>(q - 4);
  }
  for (int h = 0; h < 2; ++h) {
    const int s = 2 * j + h;  // of 16: four low bits in bytes 0..7, two high ones in 8..11
    const int scale = (p[96 + s % 8] >> 4 * (s / 8) & 15) | (p[104 + s % 4] >> 2 * (s / 4) & 3)
                                                                << 4;
    out.d[h] = half_at(p + 108) * static_cast<float>(scale - 32);
  }
}

void q2_k_block(const uint8_t* row, size_t b, BlockValues& out) {
  const uint8_t* p = row + b / 8 * 84;
  const int j = static_cast<int>(b % 8), n = j / 4, r = j % 4;
  for (int i = 0; i < 32; ++i) out.q[i] = static_cast<int8_t>(p[16 + 32 * n + i] >> 2 * r & 3);
  for (int h = 0; h < 2; ++h) {
    out.d[h] = half_at(p + 80) * static_cast<float>(p[2 * j + h] & 15);
    out.m[h] = -(half_at(p + 82) * static_cast<float>(p[2 * j + h] >> 4));
  }
}

float tree(const float a[8]) {
  return ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7]));
}

int32_t dot(const int8_t* a, const int8_t* b, int n) {
  int32_t sum = 0;
  for (int i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

void add_block(const BlockValues& w, bool has_halves, bool has_min, const ColumnGroup& x, size_t b,
               float& acc) {
  const int8_t* q = x.q + kBlock * b;
  if (!has_halves) {
    acc = std::fma(static_cast<float>(dot(w.q, q, 32)), w.d[0] * x.d[b], acc);
    if (has_min) acc = std::fma(w.m[0], x.sum[b], acc);
    return;
  }
  for (int h = 0; h < 2; ++h)
    acc = std::fma(static_cast<float>(dot(w.q + 16 * h, q + 16 * h, 16)), w.d[h] * x.d[b], acc);
  for (int h = 0; has_min && h < 2; ++h)
    acc = std::fma(w.m[h], x.d[b] * static_cast<float>(x.half_sum[h][b]), acc);
}

template <void (*kUnpack)(const uint8_t*, size_t, BlockValues&), bool kHalves, bool kMin>
void quantised_rows(const WeightMatrix& w, uint32_t row_first, uint32_t row_end,
                    const ColumnsView& x, float* y, size_t y_stride) {
  const size_t n_block = w.n_col / kBlock;
  for (uint32_t r = row_first; r < row_end; ++r) {
    const auto* row = reinterpret_cast<const uint8_t*>(w.data) + r * w.row_bytes;
    float acc[kMaxColumns][kGroupBlocks] = {};
    for (size_t b = 0; b < n_block; ++b) {
      BlockValues values;
      kUnpack(row, b, values);
      for (uint32_t c = 0; c < x.n_col; ++c) {
        add_block(values, kHalves, kMin, x.groups[c][b / kGroupBlocks], b % kGroupBlocks,
                  acc[c][b % kGroupBlocks]);
      }
    }
    for (uint32_t c = 0; c < x.n_col; ++c) y[c * y_stride + r] = tree(acc[c]);
  }
}

template <float (*kAt)(const uint8_t*), size_t kBytes>
void float_rows(const WeightMatrix& w, uint32_t row_first, uint32_t row_end, const ColumnsView& x,
                float* y, size_t y_stride) {
  for (uint32_t r = row_first; r < row_end; ++r) {
    const auto* row = reinterpret_cast<const uint8_t*>(w.data) + r * w.row_bytes;
    for (uint32_t c = 0; c < x.n_col; ++c) {
      float acc[16] = {};
      for (size_t i = 0; i < w.n_col; ++i)
        acc[i % 16] = std::fma(kAt(row + i * kBytes), x.floats[c][i], acc[i % 16]);
      for (int i = 0; i < 8; ++i) acc[i] += acc[i + 8];
      y[c * y_stride + r] = tree(acc);
    }
  }
}

void matvec_portable(const WeightMatrix& w, uint32_t row_first, uint32_t row_end,
                     const ColumnsView& x, float* y, size_t y_stride) {
  const auto run = [&](auto rows) { rows(w, row_first, row_end, x, y, y_stride); };
  switch (w.type) {
    case WeightType::kF32: return run(float_rows<f32_at, 4>);
    case WeightType::kF16: return run(float_rows<half_at, 2>);
    case WeightType::kBf16: return run(float_rows<bf16_at, 2>);
    case WeightType::kQ4_0: return run(quantised_rows<small_block<18, -1, -1, 2, 8>, false, false>);
    case WeightType::kQ4_1: return run(quantised_rows<small_block<20, 2, -1, 4, 0>, false, true>);
    case WeightType::kQ5_0: return run(quantised_rows<small_block<22, -1, 2, 6, 16>, false, false>);
    case WeightType::kQ5_1: return run(quantised_rows<small_block<24, 2, 4, 8, 0>, false, true>);
    case WeightType::kQ8_0: return run(quantised_rows<q8_0_block, false, false>);
    case WeightType::kQ2_K: return run(quantised_rows<q2_k_block, true, true>);
    case WeightType::kQ3_K: return run(quantised_rows<q3_k_block, true, false>);
    case WeightType::kQ4_K: return run(quantised_rows<q45_k_block<false>, false, true>);
    case WeightType::kQ5_K: return run(quantised_rows<q45_k_block<true>, false, true>);
    case WeightType::kQ6_K: return run(quantised_rows<q6_k_block, true, false>);
    case WeightType::kIq4Nl: return run(quantised_rows<iq4_nl_block, false, false>);
  }
}

void quantize_block(const float* x, size_t n, ColumnGroup& out, size_t b) {
  uint32_t largest = 0;
  for (size_t i = 0; i < n; ++i)
    largest = std::max(largest, std::bit_cast<uint32_t>(x[i]) & kMagnitude);
  const ColumnScale scale = column_scale(largest);
  int32_t sums[2] = {0, 0};
  for (size_t i = 0; scale.has_values && i < n; ++i) {
    const auto q = static_cast<int32_t>(std::nearbyint(x[i] * scale.inverse));
    out.q[kBlock * b + i] = static_cast<int8_t>(q);
    sums[i / 16] += q;
  }
  out.half_sum[0][b] = sums[0];
  out.half_sum[1][b] = sums[1];
  out.int_sum[b] = sums[0] + sums[1];
  out.d[b] = scale.d;
  out.sum[b] = scale.d * static_cast<float>(out.int_sum[b]);
}

void quantize_portable(const float* x, size_t n_value, ColumnGroup* out) {
  for (size_t first = 0; first < n_value; first += kGroup, ++out) {
    *out = ColumnGroup{};
    for (size_t at = first; at < std::min(n_value, first + kGroup); at += kBlock)
      quantize_block(x + at, std::min(kBlock, n_value - at), *out, (at - first) / kBlock);
  }
}

}  // namespace

const MatvecTarget* portable_target() {
  static const MatvecTarget target = {"portable", ValueOrder::kPlain, quantize_portable,
                                      matvec_portable};
  return &target;
}

}  // namespace headstart::kernels
