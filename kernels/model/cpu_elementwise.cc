// The element-wise functions of cpu_rows.h.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/model/cpu_elementwise.cc"
// clang-format off: foreach_target.h comes before highway.h
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on

#include "kernels/model/cpu_rows.h"
#include "kernels/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace penstock::kernels::HWY_NAMESPACE {

template <typename T>
void AddAs(const T* a, const T* b, T* out, uint64_t n) {
  ForEachVector(n, [&](size_t i, auto amount) {
    Store(amount, hn::Add(Load(amount, a + i), Load(amount, b + i)), out + i);
  });
}

void Add(DType dtype, const void* a, const void* b, void* out, uint64_t n) {
  WithType(dtype, [&]<typename T>(T*) {
    AddAs(static_cast<const T*>(a), static_cast<const T*>(b), static_cast<T*>(out), n);
  });
}

template <typename T>
void AccumulateAs(const T* in, float* sums, uint64_t n) {
  ForEachVector(n, [&](size_t i, auto amount) {
    Store(amount, hn::Add(Load(amount, sums + i), Load(amount, in + i)), sums + i);
  });
}

void Accumulate(DType dtype, const void* in, float* sums, uint64_t n) {
  WithType(dtype, [&]<typename T>(T*) { AccumulateAs(static_cast<const T*>(in), sums, n); });
}

/// 2 sqrt(2/pi), and 0.044715 of the cubic term.
inline constexpr float kTwoRootTwoOverPi = 1.5957691216057308f;
inline constexpr float kCubic = 0.044715f;

/// sigmoid(2u). The exponent is bounded so that exp stays finite; what it cuts off is below 1e-34.
/// A NaN of x is lost here in the bound and comes back with the product by x.
HWY_INLINE FloatVector GeluSigmoid(FloatVector x, FloatVector x_squared) {
  const auto inner = hn::MulAdd(x_squared, Splat(kCubic), Splat(1.0f));
  const auto exponent = hn::Mul(hn::Mul(x, Splat(-kTwoRootTwoOverPi)), inner);
  const auto power = hn::Exp(Floats(), hn::Min(exponent, Splat(80.0f)));
  return hn::Div(Splat(1.0f), hn::Add(Splat(1.0f), power));
}

HWY_INLINE FloatVector Gelu(FloatVector x) { return hn::Mul(x, GeluSigmoid(x, hn::Mul(x, x))); }

/// s + x s (1 − s) (2u)', s = sigmoid(2u), (2u)' = 2 sqrt(2/pi) (1 + 3 · 0.044715 x^2). For |x|
/// above 12 the second term is 0 in fp32, and x^3 must not overflow in it.
HWY_INLINE FloatVector GeluDerivative(FloatVector x) {
  const auto s = GeluSigmoid(x, hn::Mul(x, x));
  const auto bounded = hn::Max(Splat(-12.0f), hn::Min(Splat(12.0f), x));
  const auto slope = hn::Mul(hn::MulAdd(hn::Mul(bounded, bounded), Splat(3 * kCubic), Splat(1.0f)),
                             Splat(kTwoRootTwoOverPi));
  const auto spread = hn::Mul(s, hn::Sub(Splat(1.0f), s));
  const auto derivative = hn::MulAdd(hn::Mul(bounded, slope), spread, s);
  return hn::IfThenElse(hn::IsNaN(x), x, derivative);
}

template <typename T>
void GeluForwardAs(const T* x, T* out, uint64_t n) {
  ForEachVector(n,
                [&](size_t i, auto amount) { Store(amount, Gelu(Load(amount, x + i)), out + i); });
}

void GeluForward(DType dtype, const void* x, void* out, uint64_t n) {
  WithType(dtype, [&]<typename T>(T*) {
    GeluForwardAs(static_cast<const T*>(x), static_cast<T*>(out), n);
  });
}

template <typename T>
void GeluBackwardAs(const T* x, const T* d_out, T* d_x, uint64_t n) {
  ForEachVector(n, [&](size_t i, auto amount) {
    const auto derivative = GeluDerivative(Load(amount, x + i));
    Store(amount, hn::Mul(Load(amount, d_out + i), derivative), d_x + i);
  });
}

void GeluBackward(DType dtype, const void* x, const void* d_out, void* d_x, uint64_t n) {
  WithType(dtype, [&]<typename T>(T*) {
    GeluBackwardAs(static_cast<const T*>(x), static_cast<const T*>(d_out), static_cast<T*>(d_x), n);
  });
}

}  // namespace penstock::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace penstock::kernels {

HWY_EXPORT(Add);
HWY_EXPORT(Accumulate);
HWY_EXPORT(GeluForward);
HWY_EXPORT(GeluBackward);

void AddElements(DType dtype, const void* a, const void* b, void* out, uint64_t n) {
  HWY_DYNAMIC_DISPATCH(Add)(dtype, a, b, out, n);
}

void AddToFloats(DType dtype, const void* in, float* sums, uint64_t n) {
  HWY_DYNAMIC_DISPATCH(Accumulate)(dtype, in, sums, n);
}

void GeluForwardElements(DType dtype, const void* x, void* out, uint64_t n) {
  HWY_DYNAMIC_DISPATCH(GeluForward)(dtype, x, out, n);
}

void GeluBackwardElements(DType dtype, const void* x, const void* d_out, void* d_x, uint64_t n) {
  HWY_DYNAMIC_DISPATCH(GeluBackward)(dtype, x, d_out, d_x, n);
}

}  // namespace penstock::kernels
#endif
