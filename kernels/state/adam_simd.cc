// Adam on vectors: this file is compiled once for each instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/state/adam_simd.cc"
// clang-format off: foreach_target.h comes before highway.h
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on

#include "kernels/state/adam.h"
#include "kernels/state/optimizer_loop-inl.h"

HWY_BEFORE_NAMESPACE();
namespace penstock::kernels::HWY_NAMESPACE {

struct AdamDirection {
#if HWY_NATIVE_FMA && HWY_HAVE_FLOAT64
  HWY_INLINE FloatVector operator()(const AdamScalars& s, FloatVector g, FloatVector& m,
                                    FloatVector& v) const {
    const Floats d;
    m = hn::MulAdd(g, hn::Set(d, s.one_minus_beta1), hn::Mul(m, hn::Set(d, s.beta1)));
    v = hn::MulAdd(hn::Mul(g, g), hn::Set(d, s.one_minus_beta2), hn::Mul(v, hn::Set(d, s.beta2)));
    return hn::Div(m, hn::MulAdd(hn::Sqrt(v), hn::Set(d, s.rsqrt_bias2), hn::Set(d, s.eps)));
  }
#endif
};

}  // namespace penstock::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#define PENSTOCK_RULE(part) Adam##part
#include "kernels/state/optimizer_dispatch-inl.h"
#undef PENSTOCK_RULE
