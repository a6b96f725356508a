// Lion on vectors: this file is compiled once for each instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/state/lion_simd.cc"
// clang-format off: foreach_target.h comes before highway.h
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on

#include "kernels/state/lion.h"
#include "kernels/state/optimizer_loop-inl.h"

HWY_BEFORE_NAMESPACE();
namespace penstock::kernels::HWY_NAMESPACE {

struct LionDirection {
#if HWY_NATIVE_FMA && HWY_HAVE_FLOAT64
  HWY_INLINE FloatVector operator()(const LionScalars& s, FloatVector g, FloatVector& m,
                                    FloatVector&) const {
    const Floats d;
    const auto c = hn::MulAdd(g, hn::Set(d, s.one_minus_beta1), hn::Mul(m, hn::Set(d, s.beta1)));
    m = hn::MulAdd(g, hn::Set(d, s.one_minus_beta2), hn::Mul(m, hn::Set(d, s.beta2)));
    const auto has_sign = hn::Gt(hn::Abs(c), hn::Zero(d));  // neither zero nor NaN
    return hn::IfThenElse(has_sign, hn::CopySign(hn::Set(d, 1.0f), c), c);
  }
#endif
};

}  // namespace penstock::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#define PENSTOCK_RULE(part) Lion##part
#include "kernels/state/optimizer_dispatch-inl.h"
#undef PENSTOCK_RULE
