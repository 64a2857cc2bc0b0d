// kernels/testing.h: what the kernels' tests share: instruction sets, random numbers, numbers as
// operands hold them. For *_test.cc only.
//
// A std::vector made at its size ends where its allocation ends, so that AddressSanitizer sees an
// access beyond it.
#pragma once

#include <gtest/gtest.h>
#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/dequant.h"
#include "kernels/tile.h"

namespace headstart::kernels {

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kCanary = 12345.0f;

// What this machine has and the build made code for.
inline std::vector<int64_t> all_targets() {
  std::vector<int64_t> targets;
  for (int64_t left = hwy::SupportedTargets() & HWY_TARGETS; left != 0; left &= left - 1) {
    targets.push_back(left & -left);
  }
  return targets;
}

inline bool has_fma(int64_t target) {
#if HWY_ARCH_X86
  return target <= HWY_AVX2;  // the better a target, the lower its bit
#else
  return target != HWY_SCALAR && target != HWY_EMU128;
#endif
}

class ScopedTarget {
 public:
  explicit ScopedTarget(int64_t target) { choose(target); }
  ~ScopedTarget() { choose(0); }  // the best one again

 private:
  static void choose(int64_t target) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
};

// f(target) while that target is chosen, until a fatal failure.
template <class F>
void on_every_target(const F& f) {
  for (const int64_t target : all_targets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    const ScopedTarget scoped(target);
    f(target);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

// f(ops) for every table of every target, while that target is chosen.
template <class F>
void on_every_tile(const F& f) {
  on_every_target([&](int64_t) {
    for (const TileOps* ops : all_tile_ops()) {
      SCOPED_TRACE(std::to_string(ops->operand.n_byte) + " bytes an operand");
      f(*ops);
      if (::testing::Test::HasFatalFailure()) return;
    }
  });
}

inline uint32_t bits(float x) { return std::bit_cast<uint32_t>(x); }

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

// Of a sum of n products in f32, relative to the sum of their magnitudes.
inline double sum_error(size_t n) { return (8 + std::sqrt(static_cast<double>(n))) * 0x1p-24; }

// Of one rounding to an operand, relative.
inline double operand_error(size_t operand_bytes) { return operand_bytes == 2 ? 0x1p-8 : 0; }

// x as an operand holds it: bf16 is the upper half of an f32, rounded to nearest even.
inline float as_operand(size_t operand_bytes, float x) {
  if (operand_bytes != 2) return x;
  return std::bit_cast<float>((bits(x) + 0x7FFF + (bits(x) >> 16 & 1)) & 0xFFFF0000);
}

inline float operand_at(size_t operand_bytes, const std::byte* p) {
  uint32_t value = 0;
  std::memcpy(&value, p, operand_bytes);
  return std::bit_cast<float>(operand_bytes == 2 ? value << 16 : value);
}

// Depths a panel may have.
inline size_t round_depth(size_t operand_bytes, size_t k) {
  const size_t unit = operand_bytes == 2 ? kDepthPad : 1;
  return (k + unit - 1) / unit * unit;
}

inline std::vector<float> random_floats(std::mt19937& random, size_t n, float size = 1) {
  std::uniform_real_distribution<float> values(-size, size);
  std::vector<float> out(n);
  for (float& x : out) x = values(random);
  return out;
}

inline size_t random_below(std::mt19937& random, size_t n) { return random() % n; }

// Where a block of weights holds f16.
inline std::vector<size_t> halves_of(WeightType type) {
  switch (type) {
    case WeightType::kF32:
    case WeightType::kBf16: return {};
    case WeightType::kQ4_1:
    case WeightType::kQ5_1:
    case WeightType::kQ4_K:
    case WeightType::kQ5_K: return {0, 2};
    case WeightType::kQ2_K: return {80, 82};
    case WeightType::kQ3_K: return {108};
    case WeightType::kQ6_K: return {208};
    default: return {0};
  }
}

inline std::vector<WeightType> all_types() {
  std::vector<WeightType> types;
  for (size_t i = 0; i < kWeightTypes; ++i) types.push_back(static_cast<WeightType>(i));
  return types;
}

}  // namespace headstart::kernels
