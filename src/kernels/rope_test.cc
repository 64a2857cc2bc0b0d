// Proves the rotation against a plain f64 implementation written from the definition: pairs,
// partial rotation, frequency factors, linear scaling, YaRN; and the f16 conversions over every
// value. To add a case, add a row to cases().
#include "kernels/rope.h"

#include <numbers>

#include "kernels/testing.h"

namespace headstart::kernels {
namespace {

double half_value(Half h) {
  const int exponent = (h >> 10) & 31, mantissa = h & 1023;
  const double sign = h & 0x8000 ? -1 : 1;
  if (exponent == 31) return mantissa ? NAN : sign * INFINITY;
  return exponent == 0 ? sign * std::ldexp(mantissa, -24)
                       : sign * std::ldexp(1024 + mantissa, exponent - 25);
}

struct Case {
  const char* name;
  RopeConfig config;
};

// Angle of one pair, from the papers' formulas in f64.
double angle_of(const RopeConfig& c, uint32_t pos, uint32_t pair) {
  const double n_rot = c.n_rot, factor = c.freq_factors.empty() ? 1 : c.freq_factors[pair];
  const double plain = pos * std::pow(double{c.freq_base}, -2.0 * pair / n_rot) / factor;
  if (c.ext_factor == 0) return plain * c.freq_scale;
  auto dim = [&](double turns) {
    return n_rot * std::log(c.n_ctx_orig / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(double{c.freq_base}));
  };
  const double low = std::max(0.0, std::floor(dim(c.beta_fast)));
  const double high = std::min(n_rot - 1, std::ceil(dim(c.beta_slow)));
  const double ramp = std::clamp((pair - low) / std::max(0.001, high - low), 0.0, 1.0);
  return plain * c.freq_scale * ramp + plain * (1 - ramp);
}

double magnitude_of(const RopeConfig& c) {
  return c.attn_factor * (c.ext_factor == 0 ? 1 : 1 + 0.1 * std::log(1.0 / c.freq_scale));
}

// Dimension d of a head that rotates to pos.
double rotated(const RopeConfig& c, uint32_t pos, const std::vector<double>& head, uint32_t d) {
  if (d >= c.n_rot) return head[d];
  const bool halves = c.pairs == RopePairs::kHalves;
  const uint32_t pair = halves ? d % (c.n_rot / 2) : d / 2;
  const bool first = halves ? d < c.n_rot / 2 : d % 2 == 0;
  const double x0 = head[halves ? pair : 2 * pair];
  const double x1 = head[halves ? pair + c.n_rot / 2 : 2 * pair + 1];
  const double a = angle_of(c, pos, pair);
  return magnitude_of(c) *
         (first ? x0 * std::cos(a) - x1 * std::sin(a) : x0 * std::sin(a) + x1 * std::cos(a));
}

std::vector<Case> cases() {
  std::vector<float> factors(32);
  for (size_t i = 0; i < factors.size(); ++i) factors[i] = 1.0f + static_cast<float>(i) * 0.25f;
  return {
      {"halves", {RopePairs::kHalves, 64, 64, 1e6f}},
      {"interleaved", {RopePairs::kInterleaved, 64, 64, 1e5f}},
      {"partial_halves", {RopePairs::kHalves, 80, 48, 1e4f}},
      {"partial_interleaved", {RopePairs::kInterleaved, 96, 36, 1e4f}},
      {"odd_tail", {RopePairs::kHalves, 54, 54, 1e4f}},
      {"large_head", {RopePairs::kHalves, 256, 256, 1e6f}},
      {"linear", {RopePairs::kInterleaved, 128, 128, 1e4f, 0.25f}},
      {"factors", {RopePairs::kInterleaved, 64, 64, 5e5f, 1.0f, 0, 1.0f, 32, 1, 8192, factors}},
      {"yarn", {RopePairs::kHalves, 128, 128, 1e6f, 0.25f, 1.0f, 1.0f, 32, 1, 4096}},
      {"yarn_attn", {RopePairs::kInterleaved, 64, 64, 1e4f, 0.125f, 1.0f, 0.9f, 32, 1, 2048}},
  };
}

TEST(Rope, MatchesTheDefinitionInF64) {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> values(-4, 4);
  for (const Case& test : cases()) {
    const RopeConfig& c = test.config;
    RopeTable table(c);
    table.reserve(700);
    constexpr uint32_t kHeads = 3;
    std::vector<float> wide(kHeads * c.d_head);
    for (float& v : wide) v = values(random);
    std::vector<Half> in(wide.size()), out(wide.size());
    to_half(wide, in.data());
    for (const uint32_t pos : {0u, 1u, 37u, 699u}) {
      rotate_token(table, pos, kHeads, in.data(), out.data());
      for (uint32_t h = 0; h < kHeads; ++h) {
        std::vector<double> head(c.d_head);
        for (uint32_t d = 0; d < c.d_head; ++d) head[d] = half_value(in[h * c.d_head + d]);
        for (uint32_t d = 0; d < c.d_head; ++d) {
          // Half an ulp of f16 at this size, and the error of f32 angles at high positions.
          EXPECT_NEAR(half_value(out[h * c.d_head + d]), rotated(c, pos, head, d),
                      0.004 + 2e-5 * pos)
              << test.name << " pos " << pos << " head " << h << " dim " << d;
        }
      }
    }
  }
}

TEST(Rope, QueriesMatchTheDefinitionInF64) {
  std::mt19937 random(2);
  for (const Case& test : cases()) {
    const RopeConfig& c = test.config;
    RopeTable table(c);
    table.reserve(700);
    constexpr uint32_t kHeads = 3;
    const std::vector<float> in = random_floats(random, kHeads * c.d_head, 4);
    for (const uint32_t pos : {0u, 1u, 37u, 699u}) {
      on_every_target([&](int64_t) {
        std::vector<float> out = in;
        rotate_token(table, pos, kHeads, out.data());
        for (uint32_t i = 0; i < in.size(); ++i) {
          const uint32_t d = i % c.d_head;
          const auto begin = in.begin() + (i - d);
          const std::vector<double> head(begin, begin + c.d_head);
          ASSERT_NEAR(out[i], rotated(c, pos, head, d), 2e-6 + 2e-5 * pos)
              << test.name << " pos " << pos << " head " << i / c.d_head << " dim " << d;
          ASSERT_TRUE(d < c.n_rot || bits(out[i]) == bits(in[i])) << test.name << " dim " << d;
        }
      });
    }
  }
}

// f16(rope(k)) of the two functions agrees to the bit.
TEST(Rope, QueriesRotateAsKeysDo) {
  std::mt19937 random(3);
  for (const Case& test : cases()) {
    const RopeConfig& c = test.config;
    RopeTable table(c);
    table.reserve(700);
    std::vector<Half> in(2 * c.d_head), want(in.size()), got(in.size());
    to_half(random_floats(random, in.size(), 4), in.data());
    on_every_target([&](int64_t) {
      std::vector<float> wide(in.size());
      to_float(in, wide.data());
      rotate_token(table, 699, 2, wide.data());
      to_half(wide, got.data());
      rotate_token(table, 699, 2, in.data(), want.data());
      ASSERT_EQ(got, want) << test.name;
    });
  }
}

TEST(Rope, RotatesInPlaceTheSame) {
  RopeTable table({RopePairs::kHalves, 80, 48, 1e4f});
  table.reserve(10);
  std::vector<Half> in(160), out(160);
  for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<Half>(0x3000 + 17 * i);
  rotate_token(table, 9, 2, in.data(), out.data());
  rotate_token(table, 9, 2, in.data(), in.data());
  EXPECT_EQ(in, out);
}

TEST(Rope, PositionZeroIsTheIdentity) {
  RopeTable table({RopePairs::kInterleaved, 64, 64, 1e4f});
  table.reserve(1);
  std::vector<Half> in(64), out(64);
  for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<Half>(0x2C00 + 31 * i);
  rotate_token(table, 0, 1, in.data(), out.data());
  EXPECT_EQ(in, out);
}

TEST(Rope, GrowingATableKeepsItsAngles) {
  RopeTable grown({RopePairs::kHalves, 64, 64, 1e6f}), whole({RopePairs::kHalves, 64, 64, 1e6f});
  grown.reserve(3);
  grown.reserve(50);
  whole.reserve(50);
  for (uint32_t pos : {0u, 2u, 3u, 49u}) {
    EXPECT_EQ(std::memcmp(grown.cos_of(pos), whole.cos_of(pos), 64 * sizeof(float)), 0) << pos;
  }
}

TEST(Half, ConvertsEveryValueAndBack) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto h = static_cast<Half>(bits);
    float wide;
    to_float({&h, 1}, &wide);
    if (std::isnan(half_value(h))) {
      EXPECT_TRUE(std::isnan(wide));
      continue;
    }
    ASSERT_EQ(static_cast<double>(wide), half_value(h)) << bits;
    Half back;
    to_half({&wide, 1}, &back);
    ASSERT_EQ(back, h);
  }
}

TEST(Half, RoundsToNearestEvenInVectorsAndTails) {
  // 1 + 2^-11 lies between two values: the even one wins; a little more goes up.
  std::vector<float> in(37, 1.0f + 0x1p-11f);
  in[36] = in[5] = 1.0f + 0x1p-11f + 0x1p-20f;
  std::vector<Half> out(in.size());
  to_half(in, out.data());
  for (size_t i = 0; i < in.size(); ++i)
    EXPECT_EQ(out[i], i == 5 || i == 36 ? 0x3C01 : 0x3C00) << i;
}

}  // namespace
}  // namespace headstart::kernels
