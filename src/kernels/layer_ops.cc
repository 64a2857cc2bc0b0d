#include "kernels/layer_ops.h"

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/layer_ops.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace headstart::kernels {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::CappedTag<float, 16>;
using V = hn::VFromD<D>;

// out[i] = f(i-th vectors of the inputs); the tail goes through a padded copy, so that a value's
// bits do not depend on where it stands.
template <class F>
void map(const float* a, const float* b, size_t n, float* out, F f) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    hn::StoreU(f(d, hn::LoadU(d, a + i), hn::LoadU(d, b + i)), d, out + i);
  }
  if (i == n) return;
  float pad_a[16] = {}, pad_b[16] = {};
  for (size_t j = i; j < n; ++j) pad_a[j - i] = a[j], pad_b[j - i] = b[j];
  hn::StoreU(f(d, hn::LoadU(d, pad_a), hn::LoadU(d, pad_b)), d, pad_a);
  for (size_t j = i; j < n; ++j) out[j] = pad_a[j - i];
}

float SumOfSquares(const float* x, size_t n) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  V sum[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
  size_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    for (size_t j = 0; j < 4; ++j) {
      const V v = hn::LoadU(d, x + i + j * lanes);
      sum[j] = hn::MulAdd(v, v, sum[j]);
    }
  }
  float rest = 0;
  for (; i < n; ++i) rest = std::fma(x[i], x[i], rest);
  const V all = hn::Add(hn::Add(sum[0], sum[1]), hn::Add(sum[2], sum[3]));
  return hn::GetLane(hn::SumOfLanes(d, all)) + rest;
}

void RmsNorm(const float* x, const float* weight, size_t n, float eps, float* out) {
  const float factor = 1.0f / std::sqrt(SumOfSquares(x, n) / static_cast<float>(n) + eps);
  map(x, weight, n, out,
      [factor](D d, V v, V w) { return hn::Mul(hn::Mul(v, hn::Set(d, factor)), w); });
}

void Gate(Activation activation, const float* gate, const float* up, size_t n, float* out) {
  if (activation == Activation::kSilu) {
    map(gate, up, n, out, [](D d, V g, V u) { return hn::Mul(hn::Mul(g, sigmoid(d, g)), u); });
    return;
  }
  // 1 + tanh(y) = 2 sigmoid(2y)
  map(gate, up, n, out, [](D d, V g, V u) {
    const V cubic = hn::MulAdd(hn::Mul(g, g), hn::Set(d, 0.044715f), hn::Set(d, 1.0f));
    const V twice_y = hn::Mul(hn::Mul(hn::Set(d, 2 * 0.79788456080286536f), g), cubic);
    return hn::Mul(hn::Mul(g, sigmoid(d, twice_y)), u);
  });
}

void Add(const float* x, size_t n, float* y) {
  map(x, y, n, y, [](D, V a, V b) { return hn::Add(a, b); });
}

void Scale(float factor, size_t n, float* x) {
  map(x, x, n, x, [factor](D d, V v, V) { return hn::Mul(v, hn::Set(d, factor)); });
}

void SoftCap(float cap, size_t n, float* x) {
  map(x, x, n, x, [cap](D d, V v, V) {
    return hn::Mul(hn::Set(d, cap), tanh_of(d, hn::Mul(v, hn::Set(d, 1 / cap))));
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace headstart::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headstart::kernels {
HWY_EXPORT(RmsNorm);
HWY_EXPORT(Gate);
HWY_EXPORT(Add);
HWY_EXPORT(Scale);
HWY_EXPORT(SoftCap);

void rms_norm(const float* x, const float* weight, size_t n, float eps, float* out) {
  HWY_DYNAMIC_DISPATCH(RmsNorm)(x, weight, n, eps, out);
}
void gate(Activation activation, const float* gate, const float* up, size_t n, float* out) {
  HWY_DYNAMIC_DISPATCH(Gate)(activation, gate, up, n, out);
}
void add(const float* x, size_t n, float* y) { HWY_DYNAMIC_DISPATCH(Add)(x, n, y); }
void scale(float factor, size_t n, float* x) { HWY_DYNAMIC_DISPATCH(Scale)(factor, n, x); }
void soft_cap(float cap, size_t n, float* x) { HWY_DYNAMIC_DISPATCH(SoftCap)(cap, n, x); }
}  // namespace headstart::kernels
#endif  // HWY_ONCE
