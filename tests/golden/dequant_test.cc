// Proves that weights have the values that ggml gives them, to the bit, and that blocks have its
// sizes. To add a format, add it to kPairs.
#include "kernels/dequant.h"

#include <ggml.h>
#include <gtest/gtest.h>
#include <strings.h>

#include <cstring>
#include <random>
#include <vector>

namespace headstart::kernels {
namespace {

constexpr size_t kRows = 8, kColumns = 1024;

struct Pair {
  WeightType ours;
  ggml_type theirs;
};
constexpr Pair kPairs[] = {
    {WeightType::kF32, GGML_TYPE_F32},   {WeightType::kF16, GGML_TYPE_F16},
    {WeightType::kBf16, GGML_TYPE_BF16}, {WeightType::kQ4_0, GGML_TYPE_Q4_0},
    {WeightType::kQ4_1, GGML_TYPE_Q4_1}, {WeightType::kQ5_0, GGML_TYPE_Q5_0},
    {WeightType::kQ5_1, GGML_TYPE_Q5_1}, {WeightType::kQ8_0, GGML_TYPE_Q8_0},
    {WeightType::kQ2_K, GGML_TYPE_Q2_K}, {WeightType::kQ3_K, GGML_TYPE_Q3_K},
    {WeightType::kQ4_K, GGML_TYPE_Q4_K}, {WeightType::kQ5_K, GGML_TYPE_Q5_K},
    {WeightType::kQ6_K, GGML_TYPE_Q6_K}, {WeightType::kIq4Nl, GGML_TYPE_IQ4_NL},
};
static_assert(std::size(kPairs) == kWeightTypes);

// Rows from 1e-6, whose scales are subnormal in f16, to 1e2; the last one is zero.
std::vector<float> weights() {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> w(kRows * kColumns);
  float size = 1e-6f;
  for (size_t row = 0; row + 1 < kRows; ++row, size *= 20)
    for (size_t i = 0; i < kColumns; ++i) w[row * kColumns + i] = normal(random) * size;
  return w;
}

// What ggml makes of n weights; it has no function for those that are f32 already.
std::vector<float> by_ggml(ggml_type type, const std::byte* quantised, size_t n) {
  std::vector<float> out(n);
  const auto to_float = ggml_get_type_traits(type)->to_float;
  if (to_float != nullptr) {
    to_float(quantised, out.data(), static_cast<int64_t>(n));
  } else {
    std::memcpy(out.data(), quantised, n * sizeof(float));
  }
  return out;
}

TEST(GoldenDequant, GivesTheValuesOfGgml) {
  const std::vector<float> source = weights();
  for (const Pair& pair : kPairs) {
    const size_t n_byte = row_bytes(pair.ours, kColumns);
    std::vector<std::byte> quantised(kRows * n_byte);
    ASSERT_EQ(ggml_quantize_chunk(pair.theirs, source.data(), quantised.data(), 0, kRows, kColumns,
                                  nullptr),
              quantised.size());
    for (size_t row = 0; row < kRows; ++row) {
      const std::byte* in = quantised.data() + row * n_byte;
      std::vector<float> out(kColumns);
      dequantize_row(pair.ours, in, kColumns, out.data());
      const std::vector<float> want = by_ggml(pair.theirs, in, kColumns);
      EXPECT_EQ(std::memcmp(out.data(), want.data(), kColumns * sizeof(float)), 0)
          << to_string(pair.ours) << " row " << row;
    }
  }
}

TEST(GoldenDequant, BlocksHaveTheSizesOfGgml) {
  for (const Pair& pair : kPairs) {
    EXPECT_EQ(block_of(pair.ours).n_value, ggml_blck_size(pair.theirs)) << to_string(pair.ours);
    EXPECT_EQ(block_of(pair.ours).n_byte, ggml_type_size(pair.theirs)) << to_string(pair.ours);
    EXPECT_EQ(strcasecmp(to_string(pair.ours), ggml_type_name(pair.theirs)), 0)
        << to_string(pair.ours);
  }
}

}  // namespace
}  // namespace headstart::kernels
