#include "base/denormals.h"

#include <limits>

namespace penstock {

bool KeepsDenormals() {
  // Volatile, so that the processor multiplies and not the compiler.
  const volatile float normal = std::numeric_limits<float>::min();
  const volatile float denormal = std::numeric_limits<float>::denorm_min();
  return normal * 0.5f != 0 && denormal * 2.0f != 0;
}

}  // namespace penstock
