// Vector functions for sources that Highway compiles once for each instruction set. Errors are
// relative, against f64.
#if defined(HEADSTART_KERNELS_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADSTART_KERNELS_MATH_INL_H_
#undef HEADSTART_KERNELS_MATH_INL_H_
#else
#define HEADSTART_KERNELS_MATH_INL_H_
#endif

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace headstart::kernels {
namespace HWY_NAMESPACE {

inline constexpr float kLog2E = 1.44269504088896341f;

// 2^x for x <= 127, error below 1.2e-7; exactly 1 for 0 and 0 below -126, so that a key that a row
// does not see changes nothing in it.
template <class D, class V = hwy::HWY_NAMESPACE::VFromD<D>>
HWY_INLINE V exp2_of(D d, V x) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::RebindToSigned<D> di;
  const auto tiny = hn::Lt(x, hn::Set(d, -126.0f));
  x = hn::Max(x, hn::Set(d, -126.0f));
  const V whole = hn::Round(x);
  const V f = hn::Sub(x, whole);  // -0.5 to 0.5
  // The polynomial with 1 at 0 whose largest relative error is smallest: 2e-9 before rounding.
  V p = hn::Set(d, 1.53533649e-4f);
  p = hn::MulAdd(p, f, hn::Set(d, 1.33988750e-3f));
  p = hn::MulAdd(p, f, hn::Set(d, 9.61843692e-3f));
  p = hn::MulAdd(p, f, hn::Set(d, 5.55033237e-2f));
  p = hn::MulAdd(p, f, hn::Set(d, 2.40226477e-1f));
  p = hn::MulAdd(p, f, hn::Set(d, 6.93147182e-1f));
  p = hn::MulAdd(p, f, hn::Set(d, 1.0f));
  const auto exponent = hn::ShiftLeft<23>(hn::ConvertTo(di, whole));
  const V scaled = hn::BitCast(d, hn::Add(hn::BitCast(di, p), exponent));
  return hn::IfThenElse(tiny, hn::Zero(d), scaled);
}

// 1 / (1 + e^-x)
template <class D, class V = hwy::HWY_NAMESPACE::VFromD<D>>
HWY_INLINE V sigmoid(D d, V x) {
  namespace hn = hwy::HWY_NAMESPACE;
  const V z = hn::Min(hn::Mul(x, hn::Set(d, -kLog2E)), hn::Set(d, 126.0f));
  return hn::Div(hn::Set(d, 1.0f), hn::Add(hn::Set(d, 1.0f), exp2_of(d, z)));
}

template <class D, class V = hwy::HWY_NAMESPACE::VFromD<D>>
HWY_INLINE V tanh_of(D d, V x) {
  namespace hn = hwy::HWY_NAMESPACE;
  const V s = sigmoid(d, hn::Add(x, x));
  return hn::Sub(hn::Add(s, s), hn::Set(d, 1.0f));
}

}  // namespace HWY_NAMESPACE
}  // namespace headstart::kernels
HWY_AFTER_NAMESPACE();

#endif
