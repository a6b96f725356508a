// Adagrad on vectors: this file is compiled once for each instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/state/adagrad_simd.cc"
// clang-format off: foreach_target.h comes before highway.h
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on

#include "kernels/state/adagrad.h"
#include "kernels/state/optimizer_loop-inl.h"

HWY_BEFORE_NAMESPACE();
namespace penstock::kernels::HWY_NAMESPACE {

struct AdagradDirection {
#if HWY_NATIVE_FMA && HWY_HAVE_FLOAT64
  HWY_INLINE FloatVector operator()(const AdagradScalars& s, FloatVector g, FloatVector&,
                                    FloatVector& sum) const {
    sum = hn::MulAdd(g, g, sum);
    return hn::Div(g, hn::Add(hn::Sqrt(sum), hn::Set(Floats(), s.eps)));
  }
#endif
};

}  // namespace penstock::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#define PENSTOCK_RULE(part) Adagrad##part
#include "kernels/state/optimizer_dispatch-inl.h"
#undef PENSTOCK_RULE
