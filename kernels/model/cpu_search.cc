#include "kernels/model/cpu_search.h"

#include <cmath>

namespace penstock::kernels {
namespace {

float ToFloat(float value) { return value; }

/// n if there is none.
template <typename T>
uint64_t FirstBeyond(const std::byte* x, float limit, uint64_t n) {
  const auto* const values = reinterpret_cast<const T*>(x);
  uint64_t i = 0;
  while (i < n && std::fabs(ToFloat(values[i])) <= limit) ++i;
  return i;
}

}  // namespace

uint64_t CpuFirstBeyond(const ConstTensorView& x, float limit) {
  switch (x.dtype) {
    case DType::kFloat32:
      return FirstBeyond<float>(x.data, limit, x.shape.elements());
    case DType::kBFloat16:
      return FirstBeyond<BFloat16>(x.data, limit, x.shape.elements());
    case DType::kFloat16:
      return FirstBeyond<Float16>(x.data, limit, x.shape.elements());
  }
  return x.shape.elements();
}

}  // namespace penstock::kernels
