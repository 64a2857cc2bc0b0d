// Proves what a layer does besides multiplying against f64 loops, on every instruction set of this
// machine, with lengths around its vectors; that a value's bits do not depend on where it stands;
// that results may take the place of inputs; and that large inputs give numbers. Buffers end where
// their allocation ends. To add a function, add it to all_elementwise() or write a test.
#include "kernels/layer_ops.h"

#include <functional>

#include "kernels/testing.h"

namespace headstart::kernels {
namespace {

struct Value {
  double value, error;
};

constexpr float kCap = 30, kFactor = 0.7f;

// x / (1 + e^-2y) of rounded 2y: the error grows with y; e^-87 and less count as zero.
Value activated(double x, double y) {
  const double value = x / (1 + std::exp(-2 * y));
  return {value,
          (1e-6 + 6e-7 * std::min(100.0, std::abs(y))) * std::abs(value) + 2e-38 * std::abs(x)};
}

Value silu(double x) { return activated(x, x / 2); }

// x / 2 · (1 + tanh(y)) is x / (1 + e^-2y).
Value gelu(double x) { return activated(x, std::sqrt(M_2_PI) * (x + 0.044715 * x * x * x)); }

Value times(Value a, double b) {
  const double value = a.value * b;
  return {value, a.error * std::abs(b) + 1e-7 * std::abs(value) + 3e-45};  // a denormal's rounding
}

// out[i] is a function of a[i] and b[i].
struct Elementwise {
  const char* name;
  std::function<void(const float* a, const float* b, size_t n, float* out)> run;
  std::function<Value(double a, double b)> want;
};

std::vector<Elementwise> all_elementwise() {
  return {
      {"silu gate",
       [](const float* a, const float* b, size_t n, float* out) {
         gate(Activation::kSilu, a, b, n, out);
       },
       [](double a, double b) { return times(silu(a), b); }},
      {"gelu gate",
       [](const float* a, const float* b, size_t n, float* out) {
         gate(Activation::kGeluTanh, a, b, n, out);
       },
       [](double a, double b) { return times(gelu(a), b); }},
      {"add",
       [](const float* a, const float* b, size_t n, float* out) {
         std::copy_n(b, n, out);
         add(a, n, out);
       },
       [](double a, double b) {
         return Value{a + b, 1e-7 * std::abs(a + b)};
       }},
      {"scale",
       [](const float* a, const float*, size_t n, float* out) {
         std::copy_n(a, n, out);
         scale(kFactor, n, out);
       },
       [](double a, double) {
         return Value{double{kFactor} * a, 1e-7 * std::abs(a)};
       }},
      {"soft cap",
       [](const float* a, const float*, size_t n, float* out) {
         std::copy_n(a, n, out);
         soft_cap(kCap, n, out);
       },
       [](double a, double) {
         return Value{kCap * std::tanh(a / kCap), 5e-7 * kCap};
       }},
  };
}

void expect_right(const Elementwise& op, const std::vector<float>& a, const std::vector<float>& b) {
  std::vector<float> out(a.size(), kNan);
  op.run(a.data(), b.data(), a.size(), out.data());
  for (size_t i = 0; i < a.size(); ++i) {
    const Value want = op.want(a[i], b[i]);
    ASSERT_LE(std::abs(out[i] - want.value), want.error)
        << op.name << " of " << a[i] << " and " << b[i] << ": " << out[i] << " for " << want.value
        << ", " << i << " of " << a.size();
  }
}

TEST(LayerOps, MatchF64AtEveryLength) {
  std::mt19937 random(1);
  for (const Elementwise& op : all_elementwise()) {
    for (size_t n = 1; n <= 100; ++n) {
      const std::vector<float> a = random_floats(random, n, 6), b = random_floats(random, n, 3);
      on_every_target([&](int64_t) { expect_right(op, a, b); });
      if (HasFatalFailure()) return;
    }
  }
}

TEST(LayerOps, MatchF64AtRandomLengthsAndSizes) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int i = 0; i < 60; ++i) {
    const size_t n = 1 + random_below(random, 2000);
    const float size = std::exp2(static_cast<float>(random_below(random, 20)) - 10);
    const std::vector<float> a = random_floats(random, n, size), b = random_floats(random, n, 3);
    for (const Elementwise& op : all_elementwise()) {
      on_every_target([&](int64_t) { expect_right(op, a, b); });
      if (HasFatalFailure()) return;
    }
  }
}

TEST(LayerOps, LargeInputsGiveNumbers) {
  std::vector<float> a, b;
  for (const float x : {0.0f, -0.0f, 1e-38f, 87.0f, 88.0f, 89.0f, 103.0f, 200.0f, 1e4f}) {
    for (const float y : {0.0f, 1e-3f, -1.0f, 1e4f, -1e4f}) {
      a.insert(a.end(), {x, -x});
      b.insert(b.end(), {y, y});
    }
  }
  for (const Elementwise& op : all_elementwise()) {
    on_every_target([&](int64_t) { expect_right(op, a, b); });
    if (HasFatalFailure()) return;
  }
}

// Each value anew at the front, alone, and behind others.
TEST(LayerOps, AValueDependsOnNoOtherNorOnItsPlace) {
  std::mt19937 random(2);
  const std::vector<float> a = random_floats(random, 70, 6), b = random_floats(random, 70, 3);
  for (const Elementwise& op : all_elementwise()) {
    SCOPED_TRACE(op.name);
    on_every_target([&](int64_t) {
      std::vector<float> all(a.size());
      op.run(a.data(), b.data(), a.size(), all.data());
      for (size_t i = 0; i < a.size(); ++i) {
        for (const size_t n : {size_t{1}, size_t{3}, size_t{17}, a.size() - i}) {
          std::vector<float> part(std::min(n, a.size() - i));
          op.run(a.data() + i, b.data() + i, part.size(), part.data());
          for (size_t j = 0; j < part.size(); ++j) {
            ASSERT_EQ(bits(part[j]), bits(all[i + j])) << "value " << i + j << " behind " << j;
          }
        }
      }
    });
    if (HasFatalFailure()) return;
  }
}

TEST(LayerOps, AGateMayBeEitherInput) {
  std::mt19937 random(3);
  for (const size_t n : {1, 16, 37}) {
    const std::vector<float> g = random_floats(random, n, 6), up = random_floats(random, n, 3);
    for (const Activation activation : {Activation::kSilu, Activation::kGeluTanh}) {
      on_every_target([&](int64_t) {
        std::vector<float> want(n), as_g = g, as_up = up;
        gate(activation, g.data(), up.data(), n, want.data());
        gate(activation, as_g.data(), up.data(), n, as_g.data());
        gate(activation, g.data(), as_up.data(), n, as_up.data());
        ASSERT_TRUE(same_bits(as_g, want));
        ASSERT_TRUE(same_bits(as_up, want));
      });
    }
  }
}

TEST(LayerOps, NothingOfNothing) {
  on_every_target([&](int64_t) {
    float out = kCanary;
    for (const Elementwise& op : all_elementwise()) op.run(&out, &out, 0, &out);
    EXPECT_EQ(out, kCanary);
  });
}

void expect_normed(const std::vector<float>& x, const std::vector<float>& weight, float eps) {
  const size_t n = x.size();
  double squares = 0;
  for (const float v : x) squares += double{v} * v;
  const double factor = 1 / std::sqrt(squares / static_cast<double>(n) + eps);
  std::vector<float> out(n, kNan), in_place = x;
  rms_norm(x.data(), weight.data(), n, eps, out.data());
  rms_norm(in_place.data(), weight.data(), n, eps, in_place.data());
  for (size_t i = 0; i < n; ++i) {
    const double want = x[i] * factor * weight[i];
    ASSERT_LE(std::abs(out[i] - want), (4e-7 + sum_error(n)) * std::abs(want))
        << out[i] << " for " << want << ", " << i << " of " << n;
  }
  ASSERT_TRUE(same_bits(out, in_place)) << n;
}

TEST(RmsNorm, MatchesF64AtEveryLength) {
  std::mt19937 random(4);
  for (size_t n = 1; n <= 200; ++n) {
    const std::vector<float> x = random_floats(random, n, 5), weight = random_floats(random, n, 2);
    on_every_target([&](int64_t) { expect_normed(x, weight, 1e-5f); });
    if (HasFatalFailure()) return;
  }
}

TEST(RmsNorm, MatchesF64AtRandomLengthsAndSizes) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int i = 0; i < 60; ++i) {
    const size_t n = 1 + random_below(random, 6000);
    const float size = std::exp2(static_cast<float>(random_below(random, 30)) - 15);
    const std::vector<float> x = random_floats(random, n, size);
    const std::vector<float> weight = random_floats(random, n, 2);
    on_every_target([&](int64_t) { expect_normed(x, weight, 1e-6f); });
    if (HasFatalFailure()) return;
  }
}

TEST(RmsNorm, ZerosStayZerosAndLargeInputsGiveNumbers) {
  on_every_target([&](int64_t) {
    for (const size_t n : {1, 15, 64, 4097}) {
      expect_normed(std::vector<float>(n), std::vector<float>(n, 2), 1e-6f);
      expect_normed(std::vector<float>(n, -1e4f), std::vector<float>(n, 1e4f), 1e-6f);
      expect_normed(std::vector<float>(n, 1e15f), std::vector<float>(n, 1), 1e-6f);
    }
  });
}

// The sum's order is by index, wherever the row lies in memory.
TEST(RmsNorm, ARowsBitsDoNotDependOnItsAddress) {
  std::mt19937 random(5);
  for (const size_t n : {1, 17, 77, 100, 576}) {
    const std::vector<float> x = random_floats(random, n, 5), weight = random_floats(random, n, 2);
    on_every_target([&](int64_t) {
      std::vector<float> want(n);
      rms_norm(x.data(), weight.data(), n, 1e-5f, want.data());
      for (size_t offset = 1; offset < 16; ++offset) {
        std::vector<float> moved(offset + n);
        std::copy(x.begin(), x.end(), moved.begin() + offset);
        rms_norm(moved.data() + offset, weight.data(), n, 1e-5f, moved.data() + offset);
        moved.erase(moved.begin(), moved.begin() + offset);
        ASSERT_TRUE(same_bits(moved, want)) << offset;
      }
    });
  }
}

}  // namespace
}  // namespace headstart::kernels
