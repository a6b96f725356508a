#include "kernels/convert_elements.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/convert_elements.cc"
// clang-format off: foreach_target.h comes before highway.h
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on

#include "kernels/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace penstock::kernels::HWY_NAMESPACE {

template <typename In, typename Out>
void ConvertAs(const void* in, void* out, uint64_t n) {
  const auto* from = static_cast<const In*>(in);
  auto* to = static_cast<Out*>(out);
  ForEachVector(n, [&](size_t i, auto amount) { Store(amount, Load(amount, from + i), to + i); });
}

void Convert(DType in_dtype, const void* in, DType out_dtype, void* out, uint64_t n) {
  WithType(in_dtype, [&]<typename In>(In*) {
    WithType(out_dtype, [&]<typename Out>(Out*) { ConvertAs<In, Out>(in, out, n); });
  });
}

}  // namespace penstock::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace penstock::kernels {

HWY_EXPORT(Convert);

void ConvertElements(DType in_dtype, const void* in, DType out_dtype, void* out, uint64_t n) {
  HWY_DYNAMIC_DISPATCH(Convert)(in_dtype, in, out_dtype, out, n);
}

}  // namespace penstock::kernels
#endif
