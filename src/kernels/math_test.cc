// Proves the vector functions of kernels/math-inl.h against f64 over their range, compiled for
// every instruction set as the kernels are. To add a function, add a loop over it and a test.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/math_test.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/math-inl.h"
#include "kernels/testing.h"

HWY_BEFORE_NAMESPACE();
namespace headstart::kernels {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::CappedTag<float, 16>;

// x[i] = f(x[i]) for whole vectors: n is a multiple of 16.
template <class F>
void apply(float* x, size_t n, F f) {
  const D d;
  for (size_t i = 0; i < n; i += hn::Lanes(d)) hn::StoreU(f(d, hn::LoadU(d, x + i)), d, x + i);
}

void Exp2(float* x, size_t n) {
  apply(x, n, [](D d, hn::VFromD<D> v) { return exp2_of(d, v); });
}
void Sigmoid(float* x, size_t n) {
  apply(x, n, [](D d, hn::VFromD<D> v) { return sigmoid(d, v); });
}
void Tanh(float* x, size_t n) {
  apply(x, n, [](D d, hn::VFromD<D> v) { return tanh_of(d, v); });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace headstart::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headstart::kernels {
namespace {
HWY_EXPORT(Exp2);
HWY_EXPORT(Sigmoid);
HWY_EXPORT(Tanh);

// [low, high] in steps of 2^-10 with a little noise, and both ends.
std::vector<float> values_between(float low, float high) {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> noise(0, 0x1p-10f);
  std::vector<float> x;
  for (float at = low; at < high; at += 0x1p-10f) x.push_back(std::min(high, at + noise(random)));
  x.push_back(low);
  while (x.size() % 16 != 0) x.push_back(high);
  return x;
}

TEST(Math, Exp2IsNearlyExact) {
  std::vector<float> x = values_between(-126, 127);
  for (float at = -126; at <= 126; at += 0.5f) {  // where the rounded exponent changes
    for (const float to : {-1e9f, 1e9f}) x.push_back(std::nextafter(at, to));
  }
  while (x.size() % 16 != 0) x.push_back(127);
  on_every_target([&](int64_t) {
    std::vector<float> y = x;
    HWY_DYNAMIC_DISPATCH(Exp2)(y.data(), y.size());
    double worst = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      if (x[i] < -126) continue;  // may be zero
      worst = std::max(worst, std::abs(y[i] / std::exp2(double{x[i]}) - 1));
    }
    EXPECT_LT(worst, 1.2e-7);
  });
}

TEST(Math, Exp2OfWholeNumbersIsExactAndFarBelowZeroIsZero) {
  std::vector<float> x, want;
  for (int i = -126; i <= 127; ++i) {
    x.push_back(static_cast<float>(i));
    want.push_back(std::ldexp(1.0f, i));
  }
  x.push_back(-0.0f);
  want.push_back(1);
  for (const float low : {std::nextafter(-126.0f, -127.0f), -127.0f, -200.0f, -1e30f, -3e30f}) {
    x.push_back(low);
    want.push_back(0);
  }
  while (x.size() % 16 != 0) x.push_back(0), want.push_back(1);
  on_every_target([&](int64_t) {
    std::vector<float> y = x;
    HWY_DYNAMIC_DISPATCH(Exp2)(y.data(), y.size());
    for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(bits(y[i]), bits(want[i])) << x[i];
  });
}

TEST(Math, SigmoidAndTanhAreNearlyExact) {
  const std::vector<float> x = values_between(-30, 30);
  on_every_target([&](int64_t) {
    std::vector<float> s = x, t = x;
    HWY_DYNAMIC_DISPATCH(Sigmoid)(s.data(), s.size());
    HWY_DYNAMIC_DISPATCH(Tanh)(t.data(), t.size());
    for (size_t i = 0; i < x.size(); ++i) {
      const double at = x[i], want = 1 / (1 + std::exp(-at));
      // x log2(e) is rounded: its error grows with x.
      ASSERT_LE(std::abs(s[i] / want - 1), 4e-7 + 1e-7 * std::abs(at)) << x[i];
      ASSERT_NEAR(t[i], std::tanh(at), 4e-7) << x[i];
    }
  });
}

TEST(Math, SigmoidAndTanhEndAtTheirLimits) {
  std::vector<float> x = {40, 1e4f, 3e38f, -40, -1e4f, -3e38f, 0, -0.0f};
  x.resize(16);
  on_every_target([&](int64_t) {
    std::vector<float> s = x, t = x;
    HWY_DYNAMIC_DISPATCH(Sigmoid)(s.data(), s.size());
    HWY_DYNAMIC_DISPATCH(Tanh)(t.data(), t.size());
    for (size_t i = 0; i < x.size(); ++i) {
      const float sign = x[i] == 0 ? 0.0f : std::copysign(1.0f, x[i]);
      EXPECT_EQ(t[i], sign) << x[i];
      EXPECT_NEAR(s[i], (1 + sign) / 2, 1e-17) << x[i];
    }
  });
}

}  // namespace
}  // namespace headstart::kernels
#endif  // HWY_ONCE
