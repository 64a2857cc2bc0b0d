// Proves every format against a plain f64 implementation written from its definition, to the bit
// and on every instruction set of this machine: f64 holds each weight exactly (52 bits at most), so
// one rounding to f32 gives what any right order of operations gives. Rows end where their
// allocation ends, so that AddressSanitizer sees a read beyond. To add a format, add it to
// value_at() and halves_of() (kernels/testing.h).
#include "kernels/dequant.h"

#include <memory>

#include "kernels/testing.h"

namespace headstart::kernels {
namespace {

using Bytes = const uint8_t*;

uint32_t u16_at(Bytes p) { return p[0] | static_cast<uint32_t>(p[1]) << 8; }

double half_at(Bytes p) {
  const uint32_t h = u16_at(p);
  const int exponent = (h >> 10) & 31, mantissa = h & 1023;
  const double sign = h & 0x8000 ? -1 : 1;
  return exponent == 0 ? sign * std::ldexp(mantissa, -24)
                       : sign * std::ldexp(1024 + mantissa, exponent - 25);
}

// `width` bits of p, counted from its first bit.
int bits_at(Bytes p, size_t first, int width) {
  return p[first / 8] >> first % 8 & ((1 << width) - 1);
}

// Quant i of a block of 32 whose bytes hold quant j (low) and quant j + 16 (high).
int nibble_at(Bytes p, size_t i) { return bits_at(p + i % 16, i / 16 * 4, 4); }

// Quant i of those that lie side by side in `run` bytes: all the lowest bits first, then the next.
int planar_at(Bytes p, size_t run, int width, size_t i) {
  const size_t n_run = run * 8 / width;  // quants in a run of bytes
  return bits_at(p + i / n_run * run + i % run, i % n_run / run * width, width);
}

// 6-bit scale j of Q3_K.
int q3_scale_at(Bytes p, size_t j) {
  return bits_at(p + j % 8, j / 8 * 4, 4) + 16 * bits_at(p + 8 + j % 4, j / 4 * 2, 2);
}

// 6-bit scale (at = 0) or offset (at = 1) j of Q4_K and Q5_K.
int k_scale_at(Bytes p, size_t at, size_t j) {
  if (j < 4) return p[4 * at + j] & 63;
  return bits_at(p + 4 + j, 4 * at, 4) + 16 * bits_at(p + 4 * at + j - 4, 6, 2);
}

constexpr int kIq4Value[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                               1,    13,   25,  38,  53,  69,  89,  113};

// Weight i of a block.
double value_at(WeightType type, Bytes p, size_t i) {
  switch (type) {
    case WeightType::kF32: {
      float value;
      std::memcpy(&value, p, sizeof(value));
      return double{value};
    }
    case WeightType::kF16: return half_at(p);
    case WeightType::kBf16: return double{std::bit_cast<float>(u16_at(p) << 16)};
    case WeightType::kQ4_0: return half_at(p) * (nibble_at(p + 2, i) - 8);
    case WeightType::kQ4_1: return half_at(p) * nibble_at(p + 4, i) + half_at(p + 2);
    case WeightType::kQ5_0:
      return half_at(p) * (nibble_at(p + 6, i) + 16 * bits_at(p + 2, i, 1) - 16);
    case WeightType::kQ5_1:
      return half_at(p) * (nibble_at(p + 8, i) + 16 * bits_at(p + 4, i, 1)) + half_at(p + 2);
    case WeightType::kQ8_0: return half_at(p) * static_cast<int8_t>(p[2 + i]);
    case WeightType::kQ2_K:
      return half_at(p + 80) * (p[i / 16] & 15) * planar_at(p + 16, 32, 2, i) -
             half_at(p + 82) * (p[i / 16] >> 4);
    case WeightType::kQ3_K:
      return half_at(p + 108) * (q3_scale_at(p + 96, i / 16) - 32) *
             (planar_at(p + 32, 32, 2, i) + 4 * planar_at(p, 32, 1, i) - 4);
    case WeightType::kQ4_K:
      return half_at(p) * k_scale_at(p + 4, 0, i / 32) * planar_at(p + 16, 32, 4, i) -
             half_at(p + 2) * k_scale_at(p + 4, 1, i / 32);
    case WeightType::kQ5_K:
      return half_at(p) * k_scale_at(p + 4, 0, i / 32) *
                 (planar_at(p + 48, 32, 4, i) + 16 * planar_at(p + 16, 32, 1, i)) -
             half_at(p + 2) * k_scale_at(p + 4, 1, i / 32);
    case WeightType::kQ6_K:
      return half_at(p + 208) * static_cast<int8_t>(p[192 + i / 16]) *
             (planar_at(p, 64, 4, i) + 16 * planar_at(p + 128, 32, 2, i) - 32);
    case WeightType::kIq4Nl: return half_at(p) * kIq4Value[nibble_at(p + 2, i)];
  }
  return NAN;
}

// Random bytes but for the scales, half of which are awkward. No infinities, no NaN.
void fill_block(WeightType type, std::mt19937& random, uint8_t* p) {
  constexpr uint16_t kAwkward[] = {0x0000, 0x8000, 0x0001, 0x8001, 0x03FF,
                                   0x83FF, 0x0400, 0x7BFF, 0xFBFF, 0x3C00};
  const size_t n_byte = block_of(type).n_byte;
  for (size_t i = 0; i < n_byte; ++i) p[i] = static_cast<uint8_t>(random());
  for (const size_t at : halves_of(type)) {
    auto half = static_cast<uint16_t>(random());
    if ((half & 0x7C00) == 0x7C00) half ^= 0x4000;
    if (random() % 2) half = kAwkward[random() % std::size(kAwkward)];
    p[at] = static_cast<uint8_t>(half);
    p[at + 1] = static_cast<uint8_t>(half >> 8);
  }
  const bool f32_exponent = type == WeightType::kF32 || type == WeightType::kBf16;
  if (f32_exponent && (p[n_byte - 1] & 0x7F) == 0x7F) p[n_byte - 1] ^= 0x40;
}

// A row of n_block blocks, `offset` bytes into an allocation that ends with it, and its weights.
struct Row {
  Row(WeightType t, size_t n_block, size_t offset, std::mt19937& random)
      : type(t), n(n_block * block_of(t).n_value), start(offset) {
    const size_t n_byte = block_of(t).n_byte;
    bytes = std::make_unique<uint8_t[]>(offset + n_block * n_byte);
    for (size_t b = 0; b < n_block; ++b) {
      uint8_t* block = bytes.get() + offset + b * n_byte;
      fill_block(t, random, block);
      for (size_t i = 0; i < block_of(t).n_value; ++i)
        want.push_back(static_cast<float>(value_at(t, block, i)));
    }
  }
  const std::byte* data() const { return reinterpret_cast<const std::byte*>(bytes.get() + start); }

  WeightType type;
  size_t n, start;
  std::unique_ptr<uint8_t[]> bytes;
  std::vector<float> want;
};

// Compares bits: a zero has a sign.
void expect_right(const Row& row, DequantizeRow dequantize) {
  constexpr size_t kGuard = 19;
  std::vector<float> out(row.n + 2 * kGuard, kCanary);
  dequantize(row.data(), row.n, out.data() + kGuard);
  for (size_t i = 0; i < row.n; ++i) {
    const float got = out[kGuard + i];
    ASSERT_EQ(std::bit_cast<uint32_t>(got), std::bit_cast<uint32_t>(row.want[i]))
        << got << " for " << row.want[i] << ", weight " << i << " of " << row.n;
  }
  for (size_t i = 0; i < kGuard; ++i) {
    ASSERT_EQ(out[i], kCanary) << "written before the row";
    ASSERT_EQ(out[kGuard + row.n + i], kCanary) << "written after the row";
  }
}

TEST(Dequant, MatchesTheDefinitionToTheBitOnEveryTarget) {
  std::mt19937 random(1);
  for (const WeightType type : all_types()) {
    for (const size_t n_block : {1, 2, 3, 15, 16, 37, 100}) {
      for (const size_t offset : {0, 1, 2, 7}) {
        const Row row(type, n_block, offset, random);
        for (const int64_t target : all_targets()) {
          SCOPED_TRACE(std::string(to_string(type)) + " on " + hwy::TargetName(target));
          const ScopedTarget scoped(target);
          expect_right(row, dequantize_row_of(type));
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(Dequant, DispatchesToTheSameFunction) {
  std::mt19937 random(2);
  for (const WeightType type : all_types()) {
    const Row row(type, 3, 1, random);
    std::vector<float> out(row.n);
    dequantize_row(type, row.data(), row.n, out.data());
    EXPECT_EQ(std::memcmp(out.data(), row.want.data(), row.n * sizeof(float)), 0)
        << to_string(type);
  }
}

TEST(Dequant, AnEmptyRowTouchesNothing) {
  for (const WeightType type : all_types()) {
    const auto row = std::make_unique<std::byte[]>(0);
    float out = 1.0f;
    dequantize_row(type, row.get(), 0, &out);
    EXPECT_EQ(out, 1.0f) << to_string(type);
  }
}

TEST(Dequant, CountsBytesByBlocks) {
  EXPECT_EQ(row_bytes(WeightType::kF32, 3), 12u);
  EXPECT_EQ(row_bytes(WeightType::kBf16, 3), 6u);
  EXPECT_EQ(row_bytes(WeightType::kQ4_1, 64), 40u);
  EXPECT_EQ(row_bytes(WeightType::kQ6_K, 512), 420u);
  EXPECT_STREQ(to_string(WeightType::kIq4Nl), "IQ4_NL");
}

TEST(DequantDeathTest, ARowHasWholeBlocks) {
  const std::byte row[18] = {};
  float out[32];
  EXPECT_DEATH(dequantize_row(WeightType::kQ4_0, row, 31, out), "whole blocks");
}

}  // namespace
}  // namespace headstart::kernels
