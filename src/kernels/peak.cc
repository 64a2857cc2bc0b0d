#include "kernels/peak.h"

#if defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "kernels/tile_bf16.h"
#include "kernels/tile_f32.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/peak.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace headstart::kernels {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

// Of the tile's width. More chains than latency × units of any CPU, and the registers of the
// narrowest set hold them.
using D = hn::CappedTag<float, kColumnPad>;
constexpr size_t kChains = 12;

uint64_t MultiplyInRegisters(uint64_t n_round, const float* factors, float* sums) {
  const D d;
  const auto a = hn::Set(d, factors[0]), b = hn::Set(d, factors[1]);
  hn::VFromD<D> acc[kChains];
#pragma GCC unroll 12
  for (size_t i = 0; i < kChains; ++i) acc[i] = hn::Set(d, static_cast<float>(i));
  for (uint64_t round = 0; round < n_round; ++round) {
#pragma GCC unroll 12
    for (size_t i = 0; i < kChains; ++i) acc[i] = hn::MulAdd(a, b, acc[i]);
  }
#pragma GCC unroll 12
  for (size_t i = 0; i < kChains; ++i) sums[i] = hn::GetLane(hn::SumOfLanes(d, acc[i]));
  return n_round * kChains * hn::Lanes(d) * 2;
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace headstart::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#if defined(__x86_64__)
// GCC 12's own header trips over it (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#endif

namespace headstart::kernels {
HWY_EXPORT(MultiplyInRegisters);
namespace {

constexpr size_t kChains = 12;

#if defined(__x86_64__)
__attribute__((target("avx512f,avx512bf16"))) uint64_t multiply_bf16(uint64_t n_round,
                                                                     const float* factors,
                                                                     float* sums) {
  const __m512bh a = _mm512_cvtne2ps_pbh(_mm512_set1_ps(factors[0]), _mm512_set1_ps(factors[0]));
  const __m512bh b = _mm512_cvtne2ps_pbh(_mm512_set1_ps(factors[1]), _mm512_set1_ps(factors[1]));
  __m512 acc[kChains];
#pragma GCC unroll 12
  for (size_t i = 0; i < kChains; ++i) acc[i] = _mm512_set1_ps(static_cast<float>(i));
  for (uint64_t round = 0; round < n_round; ++round) {
#pragma GCC unroll 12
    for (size_t i = 0; i < kChains; ++i) acc[i] = _mm512_dpbf16_ps(acc[i], a, b);
  }
#pragma GCC unroll 12
  for (size_t i = 0; i < kChains; ++i) sums[i] = _mm512_cvtss_f32(acc[i]);
  return n_round * kChains * 32 * 2;
}
#elif defined(__aarch64__)
__attribute__((target("arch=armv8.2-a+bf16"))) uint64_t multiply_bf16(uint64_t n_round,
                                                                      const float* factors,
                                                                      float* sums) {
  const bfloat16x8_t a =
      vcombine_bf16(vcvt_bf16_f32(vdupq_n_f32(factors[0])), vcvt_bf16_f32(vdupq_n_f32(factors[0])));
  const bfloat16x8_t b =
      vcombine_bf16(vcvt_bf16_f32(vdupq_n_f32(factors[1])), vcvt_bf16_f32(vdupq_n_f32(factors[1])));
  float32x4_t acc[kChains];
#pragma GCC unroll 12
  for (size_t i = 0; i < kChains; ++i) acc[i] = vdupq_n_f32(static_cast<float>(i));
  for (uint64_t round = 0; round < n_round; ++round) {
#pragma GCC unroll 12
    for (size_t i = 0; i < kChains; ++i) acc[i] = vbfdotq_f32(acc[i], a, b);
  }
#pragma GCC unroll 12
  for (size_t i = 0; i < kChains; ++i) sums[i] = vgetq_lane_f32(acc[i], 0);
  return n_round * kChains * 8 * 2;
}
#endif

}  // namespace

uint64_t multiply_in_registers(const TileOps& ops, uint64_t n_round) {
  // Neither known to the compiler nor without use to it.
  volatile float one = 1.0f, sink = 0.0f;
  const float factors[2] = {one, one};
  float sums[kChains] = {};
  uint64_t n_operation = 0;
  if (&ops == &tile_ops_f32()) {
    n_operation = HWY_DYNAMIC_DISPATCH(MultiplyInRegisters)(n_round, factors, sums);
#if defined(__x86_64__) || defined(__aarch64__)
  } else if (&ops == tile_ops_avx512bf16() || &ops == tile_ops_neonbf16()) {
    n_operation = multiply_bf16(n_round, factors, sums);
#endif
  }
  for (const float sum : sums) sink = sink + sum;
  return n_operation;
}

}  // namespace headstart::kernels
#endif  // HWY_ONCE
