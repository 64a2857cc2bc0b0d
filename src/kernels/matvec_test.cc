// Proves every kernel of this machine against f64 sums over weights that are dequantised here from
// the formats' definition; that all instruction sets give the same bits; that the bits do not
// depend on the number of columns, the range of rows or the neighbours; and that nothing outside is
// touched. To add a format, add it to kTypes and to weights_of().
#include "kernels/matvec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>

namespace headstart::kernels {
namespace {

// mt19937 of exactly 32 bits, whose values need no casts.
struct Random : std::mersenne_twister_engine<uint32_t, 32, 624, 397, 31, 0x9908B0DF, 11, 0xFFFFFFFF,
                                             7, 0x9D2C5680, 15, 0xEFC60000, 18, 1812433253> {
  using mersenne_twister_engine::mersenne_twister_engine;
};

constexpr uint32_t kSeed = 20240607;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kCanary = -12345.0f;

struct TypeName {
  WeightType type;
  const char* name;
};
constexpr TypeName kTypes[] = {
    {WeightType::kF32, "F32"},   {WeightType::kF16, "F16"},      {WeightType::kBf16, "BF16"},
    {WeightType::kQ4_0, "Q4_0"}, {WeightType::kQ4_1, "Q4_1"},    {WeightType::kQ5_0, "Q5_0"},
    {WeightType::kQ5_1, "Q5_1"}, {WeightType::kQ8_0, "Q8_0"},    {WeightType::kQ2_K, "Q2_K"},
    {WeightType::kQ3_K, "Q3_K"}, {WeightType::kQ4_K, "Q4_K"},    {WeightType::kQ5_K, "Q5_K"},
    {WeightType::kQ6_K, "Q6_K"}, {WeightType::kIq4Nl, "IQ4_NL"},
};

bool is_float(WeightType type) { return type <= WeightType::kBf16; }

double half_value(const uint8_t* p) {
  const int h = p[0] | p[1] << 8, exponent = h >> 10 & 31, mantissa = h & 1023;
  const double sign = h & 0x8000 ? -1 : 1;
  return exponent == 0 ? sign * std::ldexp(mantissa, -24)
                       : sign * std::ldexp(1024 + mantissa, exponent - 25);
}

// Two bits, a third, or six: the value's place in the 128 values that share the bytes.
void k_half_weights(WeightType type, const uint8_t* p, int half, double* w) {
  for (int i = 0; i < 128; ++i) {
    const int value = 128 * half + i, group = value / 16;
    if (type == WeightType::kQ6_K) {
      const int low = p[64 * half + i % 64] >> (i < 64 ? 0 : 4) & 15;
      const int high = p[128 + 32 * half + i % 32] >> 2 * (i / 32) & 3;
      w[i] = half_value(p + 208) * static_cast<int8_t>(p[192 + group]) * (low + 16 * high - 32);
    } else if (type == WeightType::kQ3_K) {
      const int low = p[32 + 32 * half + i % 32] >> 2 * (i / 32) & 3;
      const int high = p[i % 32] >> (4 * half + i / 32) & 1;
      const uint8_t* s = p + 96;
      const int scale = (group < 8 ? s[group] & 15 : s[group - 8] >> 4) |
                        (s[8 + group % 4] >> 2 * (group / 4) & 3) << 4;
      w[i] = half_value(p + 108) * (scale - 32) * (low + 4 * high - 4);
    } else {
      const int q = p[16 + 32 * half + i % 32] >> 2 * (i / 32) & 3;
      w[i] = half_value(p + 80) * (p[group] & 15) * q - half_value(p + 82) * (p[group] >> 4);
    }
  }
}

void k45_weights(WeightType type, const uint8_t* p, double* w) {
  const uint8_t *s = p + 4, *high = p + 16, *low = p + (type == WeightType::kQ4_K ? 16 : 48);
  for (int i = 0; i < 256; ++i) {
    const int j = i / 32;
    const int scale = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | s[j - 4] >> 6 << 4;
    const int min = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | s[j] >> 6 << 4;
    int q = low[32 * (j / 2) + i % 32] >> 4 * (j % 2) & 15;
    if (type == WeightType::kQ5_K) q += (high[i % 32] >> j & 1) * 16;
    w[i] = half_value(p) * scale * q - half_value(p + 2) * min;
  }
}

void small_weights(WeightType type, const uint8_t* p, double* w) {
  constexpr int kIq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                            1,    13,   25,  38,  53,  69,  89,  113};
  const bool has_min = type == WeightType::kQ4_1 || type == WeightType::kQ5_1;
  const bool has_high = type == WeightType::kQ5_0 || type == WeightType::kQ5_1;
  const uint8_t *high = p + (has_min ? 4 : 2), *q = high + (has_high ? 4 : 0);
  for (int i = 0; i < 32; ++i) {
    const int nibble = i < 16 ? q[i] & 15 : q[i - 16] >> 4;
    const int bit = has_high ? high[i / 8] >> i % 8 & 1 : 0;
    int value = nibble + 16 * bit;
    if (type == WeightType::kQ8_0) value = static_cast<int8_t>(q[i]);
    if (type == WeightType::kQ4_0) value -= 8;
    if (type == WeightType::kQ5_0) value -= 16;
    if (type == WeightType::kIq4Nl) value = kIq4[nibble];
    w[i] = half_value(p) * value + (has_min ? half_value(p + 2) : 0);
  }
}

void block_weights(WeightType type, const uint8_t* p, double* w) {
  switch (type) {
    case WeightType::kF32:
      w[0] = std::bit_cast<float>(p[0] | p[1] << 8 | p[2] << 16 | p[3] << 24);
      return;
    case WeightType::kF16: w[0] = half_value(p); return;
    case WeightType::kBf16: w[0] = std::bit_cast<float>(p[0] << 16 | p[1] << 24); return;
    case WeightType::kQ4_K:
    case WeightType::kQ5_K: return k45_weights(type, p, w);
    case WeightType::kQ2_K:
    case WeightType::kQ3_K:
    case WeightType::kQ6_K:
      k_half_weights(type, p, 0, w);
      return k_half_weights(type, p, 1, w + 128);
    default: return small_weights(type, p, w);
  }
}

// Any bits are valid quants; the floats of a block get ordinary sizes.
void fill_row(WeightType type, size_t n_value, uint8_t* row, Random& random) {
  const WeightBlock block = block_of(type);
  const auto put_half = [&](uint8_t* p) {
    const uint32_t sign = random() & 0x8000, h = sign | (0x2400 + random() % 0x1400);
    p[0] = static_cast<uint8_t>(h);
    p[1] = static_cast<uint8_t>(h >> 8);
  };
  const size_t n_byte = row_bytes(type, n_value);
  for (size_t i = 0; i < n_byte; ++i) row[i] = static_cast<uint8_t>(random());
  for (uint8_t* p = row; p < row + n_byte; p += block.n_byte) {
    switch (type) {
      case WeightType::kF32: p[3] = static_cast<uint8_t>((random() & 0x80) | 0x3E); break;
      case WeightType::kBf16: p[1] = static_cast<uint8_t>((random() & 0x80) | 0x3E); break;
      case WeightType::kQ2_K: put_half(p + 80), put_half(p + 82); break;
      case WeightType::kQ3_K: put_half(p + 108); break;
      case WeightType::kQ6_K: put_half(p + 208); break;
      case WeightType::kQ4_1:
      case WeightType::kQ5_1:
      case WeightType::kQ4_K:
      case WeightType::kQ5_K: put_half(p), put_half(p + 2); break;
      default: put_half(p);
    }
  }
}

// A matrix whose data end where its allocation ends and start `shift` bytes into it.
struct Matrix {
  Matrix(WeightType type, uint32_t n_row, size_t n_value, size_t shift, Random& random)
      : row_size(row_bytes(type, n_value)), bytes(new uint8_t[shift + n_row * row_size]) {
    for (uint32_t r = 0; r < n_row; ++r)
      fill_row(type, n_value, bytes.get() + shift + r * row_size, random);
    view = {type, reinterpret_cast<const std::byte*>(bytes.get() + shift), row_size, n_row,
            static_cast<uint32_t>(n_value)};
  }
  uint8_t* row(uint32_t r) const {
    return reinterpret_cast<uint8_t*>(const_cast<std::byte*>(view.data)) + r * row_size;
  }
  std::vector<double> weights(uint32_t r) const {
    const WeightBlock block = block_of(view.type);
    std::vector<double> w(view.n_col);
    for (size_t b = 0; b < view.n_col / block.n_value; ++b)
      block_weights(view.type, row(r) + b * block.n_byte, w.data() + b * block.n_value);
    return w;
  }

  size_t row_size;
  std::unique_ptr<uint8_t[]> bytes;
  WeightMatrix view;
};

std::vector<float> random_floats(size_t n, Random& random) {
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> x(n);
  for (float& v : x) v = normal(random);
  return x;
}

std::vector<float> product(const WeightMatrix& w, const std::vector<float>& x, uint32_t n_col,
                           const MatvecTarget& target) {
  QuantizedColumns columns;
  quantize_columns(x.data(), w.n_col, n_col, w.n_col, columns, target);
  std::vector<float> y(n_col * w.n_row);
  matvec(w, 0, w.n_row, columns, y.data(), w.n_row);
  return y;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

class MatvecTypes : public testing::TestWithParam<TypeName> {
 protected:
  WeightType type() const { return GetParam().type; }
  // Lengths with every count of blocks behind the last whole group, and those of models.
  std::vector<size_t> lengths() const {
    if (is_float(type())) return {1, 7, 16, 31, 576, 899};
    if (block_of(type()).n_value == 256) return {256, 512, 768, 2048, 4864};
    return {32, 64, 96, 128, 160, 192, 224, 256, 288, 576, 896, 4864};
  }
};

TEST_P(MatvecTypes, EqualsTheDefinitionInF64) {
  Random random(kSeed);
  for (const MatvecTarget* target : matvec_targets()) {
    for (const size_t n_value : lengths()) {
      constexpr uint32_t kRows = 5;
      const uint32_t n_col = 1 + random() % kMaxColumns;
      const Matrix w(type(), kRows, n_value, random() % 64, random);
      const auto x = random_floats(n_col * n_value, random);
      QuantizedColumns columns;
      quantize_columns(x.data(), n_value, n_col, n_value, columns, *target);
      std::vector<float> y(n_col * kRows);
      matvec(w.view, 0, kRows, columns, y.data(), kRows);
      for (uint32_t r = 0; r < kRows; ++r) {
        const std::vector<double> row = w.weights(r);
        for (uint32_t c = 0; c < n_col; ++c) {
          double want = 0, size = 0;
          for (size_t i = 0; i < n_value; ++i) {
            const double v = is_float(type()) ? x[c * n_value + i] : columns.value(c, i);
            want += row[i] * v;
            size += std::abs(row[i] * v);
          }
          // K types subtract a minimum of the size of the values: their parts are larger than size.
          ASSERT_NEAR(y[c * kRows + r], want, 1e-6 * size)
              << name_of(*target) << " n_value " << n_value << " row " << r << " col " << c;
        }
      }
    }
  }
}

TEST_P(MatvecTypes, AllTargetsGiveTheSameBits) {
  Random random(kSeed);
  for (const size_t n_value : lengths()) {
    const Matrix w(type(), 7, n_value, 1, random);
    const auto x = random_floats(3 * n_value, random);
    const auto want = product(w.view, x, 3, *matvec_targets().back());
    for (const MatvecTarget* target : matvec_targets())
      EXPECT_TRUE(same_bits(product(w.view, x, 3, *target), want))
          << name_of(*target) << " n_value " << n_value;
  }
}

TEST_P(MatvecTypes, BitsDoNotDependOnColumnsOrRange) {
  Random random(kSeed);
  for (const MatvecTarget* target : matvec_targets()) {
    for (const size_t n_value : lengths()) {
      constexpr uint32_t kRows = 6;
      const Matrix w(type(), kRows, n_value, 3, random);
      const auto x = random_floats(kMaxColumns * n_value, random);
      const auto want = product(w.view, x, kMaxColumns, *target);
      for (uint32_t n_col = 1; n_col < kMaxColumns; ++n_col) {
        // Other columns, another range, and a stride with room: what lies between stays.
        const uint32_t first_col = random() % (kMaxColumns - n_col + 1), first = random() % kRows;
        const uint32_t end = first + 1 + random() % (kRows - first);
        QuantizedColumns columns;
        quantize_columns(x.data() + first_col * n_value, n_value, n_col, n_value, columns, *target);
        constexpr size_t kStride = kRows + 3;
        std::vector<float> y(n_col * kStride, kCanary);
        matvec(w.view, first, end, columns, y.data(), kStride);
        for (uint32_t c = 0; c < n_col; ++c) {
          for (uint32_t r = 0; r < kStride; ++r) {
            const float expected =
                r >= first && r < end ? want[(first_col + c) * kRows + r] : kCanary;
            ASSERT_EQ(std::bit_cast<uint32_t>(y[c * kStride + r]),
                      std::bit_cast<uint32_t>(expected))
                << name_of(*target) << " n_value " << n_value << " n_col " << n_col;
          }
        }
      }
    }
  }
}

TEST_P(MatvecTypes, NeighbouringRowsDoNotMatter) {
  Random random(kSeed);
  for (const MatvecTarget* target : matvec_targets()) {
    for (const size_t n_value : lengths()) {
      const Matrix w(type(), 3, n_value, 0, random);
      const auto x = random_floats(2 * n_value, random);
      const auto before = product(w.view, x, 2, *target);
      std::memset(w.row(2), 0xFF, w.row_size);  // NaN wherever there is a float
      const auto after = product(w.view, x, 2, *target);
      for (uint32_t i : {0, 1, 3, 4})
        ASSERT_EQ(std::bit_cast<uint32_t>(before[i]), std::bit_cast<uint32_t>(after[i]))
            << name_of(*target) << " n_value " << n_value;
    }
  }
}

TEST_P(MatvecTypes, ExtremeQuantsStayExact) {
  Random random(kSeed);
  for (const int fill : {0x00, 0x7F, 0x80, 0xFF}) {
    const Matrix w(type(), 1, 512, 0, random);
    const WeightBlock block = block_of(type());
    Matrix filled(type(), 1, 512, 0, random);
    std::memset(filled.row(0), fill, filled.row_size);
    // Only the quants are extreme: scales keep their random values, read through the weights.
    for (size_t i = 0; i < filled.row_size; i += block.n_byte) {
      const bool scale_last =
          type() == WeightType::kQ6_K || type() == WeightType::kQ3_K || type() == WeightType::kQ2_K;
      const size_t at = scale_last ? i + block.n_byte - 4 : i, n = std::min(4u, block.n_byte);
      std::memcpy(filled.row(0) + at, w.row(0) + at, n);
    }
    std::vector<float> x(512, 1.0f);
    for (size_t i = 0; i < 512; i += 2 + random() % 3) x[i] = -1.0f;
    const auto want = product(filled.view, x, 1, *matvec_targets().back());
    for (const MatvecTarget* target : matvec_targets())
      EXPECT_TRUE(same_bits(product(filled.view, x, 1, *target), want)) << name_of(*target);
  }
}

INSTANTIATE_TEST_SUITE_P(All, MatvecTypes, testing::ValuesIn(kTypes),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(Matvec, RandomShapesAgreeWithPortable) {
  Random random(kSeed);
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  for (int i = 0; i < 200; ++i) {
    const WeightType type = kTypes[random() % std::size(kTypes)].type;
    const size_t n_value = block_of(type).n_value * (1 + random() % 40);
    const uint32_t n_row = 1 + random() % 9, n_col = 1 + random() % kMaxColumns;
    const Matrix w(type, n_row, n_value, random() % 8, random);
    const auto x = random_floats(n_col * n_value, random);
    const auto want = product(w.view, x, n_col, *matvec_targets().back());
    for (const MatvecTarget* target : matvec_targets())
      ASSERT_TRUE(same_bits(product(w.view, x, n_col, *target), want))
          << name_of(*target) << " case " << i << " type " << static_cast<int>(type) << " n_value "
          << n_value << " rows " << n_row << " cols " << n_col;
  }
}

// Every CPU must come to this hash: no library's random floats take part in it.
TEST(Matvec, BitsAreTheSameOnEveryCpu) {
  for (const MatvecTarget* target : matvec_targets()) {
    Random random(kSeed);
    uint64_t hash = 0xCBF29CE484222325;  // FNV-1a
    for (const TypeName& type : kTypes) {
      const size_t n_value = block_of(type.type).n_value == 256 ? 2304 : 1952;
      const Matrix w(type.type, 7, n_value, 0, random);
      std::vector<float> x(2 * n_value);
      for (float& v : x) v = static_cast<float>(static_cast<int>(random() % 4001) - 2000) / 512;
      for (const float y : product(w.view, x, 2, *target)) {
        const auto bits = std::bit_cast<uint32_t>(y);
        for (int i = 0; i < 4; ++i) hash = (hash ^ (bits >> 8 * i & 255)) * 0x100000001B3;
      }
    }
    EXPECT_EQ(hash, 12914088871176091869u) << name_of(*target);
  }
}

TEST(QuantizedColumns, AllTargetsRoundAlikeAndWithinHalfAStep) {
  Random random(kSeed);
  for (const size_t n_value : {32, 33, 95, 256, 300, 576, 4864}) {
    auto x = random_floats(n_value, random);
    for (size_t i = 0; i < n_value; i += 5) x[i] *= 37.0f;
    QuantizedColumns want;
    quantize_columns(x.data(), n_value, 1, n_value, want, *matvec_targets().back());
    for (const MatvecTarget* target : matvec_targets()) {
      QuantizedColumns columns;
      quantize_columns(x.data(), n_value, 1, n_value, columns, *target);
      for (size_t i = 0; i < n_value; ++i) {
        ASSERT_EQ(columns.value(0, i), want.value(0, i)) << name_of(*target) << " " << i;
        const size_t first = i / 32 * 32, end = std::min(n_value, first + 32);
        float largest = 0;
        for (size_t k = first; k < end; ++k) largest = std::max(largest, std::abs(x[k]));
        ASSERT_NEAR(columns.value(0, i), x[i], largest / 253) << name_of(*target);
      }
    }
  }
}

TEST(QuantizedColumns, ZeroTinyAndInfiniteBlocks) {
  Random random(kSeed);
  const Matrix w(WeightType::kQ4_1, 2, 64, 0, random);
  for (const MatvecTarget* target : matvec_targets()) {
    std::vector<float> x(64, 0.0f);
    EXPECT_EQ(product(w.view, x, 1, *target), std::vector<float>(2, 0.0f));
    x[3] = 1e-38f;
    EXPECT_EQ(product(w.view, x, 1, *target), std::vector<float>(2, 0.0f));
    for (const float bad : {kNan, std::numeric_limits<float>::infinity()}) {
      x[40] = bad;
      for (const float y : product(w.view, x, 1, *target)) EXPECT_TRUE(std::isnan(y));
    }
  }
}

TEST(QuantizedColumns, ReuseLeavesNothingBehind) {
  Random random(kSeed);
  const auto x = random_floats(8 * 4864, random);
  for (const MatvecTarget* target : matvec_targets()) {
    QuantizedColumns reused;
    quantize_columns(x.data(), 4864, 8, 4864, reused, *target);
    quantize_columns(x.data(), 288, 1, 288, reused, *target);
    const Matrix w(WeightType::kQ8_0, 4, 288, 0, random);
    std::vector<float> y(4);
    matvec(w.view, 0, 4, reused, y.data(), 4);
    EXPECT_TRUE(same_bits(y, product(w.view, x, 1, *target))) << name_of(*target);
  }
}

}  // namespace
}  // namespace headstart::kernels
