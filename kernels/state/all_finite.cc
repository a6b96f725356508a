#include "kernels/state/all_finite.h"

#include <bit>

#include "kernels/dtype.h"

namespace penstock::kernels {
namespace {

uint32_t BitsOf(float value) { return std::bit_cast<uint32_t>(value); }
uint32_t BitsOf(BFloat16 value) { return value.bits; }
uint32_t BitsOf(Float16 value) { return value.bits; }

/// Without its sign, the pattern of infinity and of every NaN, and of nothing else, carries into
/// the sign when the exponent's lowest bit, 1 << `fraction`, is added. Every instruction set has
/// vectors of sums and ors.
template <typename Value>
bool NoneCarries(const void* values, uint64_t n, int fraction) {
  constexpr uint32_t kSign = uint32_t{1} << (8 * sizeof(Value) - 1);
  const auto* value = static_cast<const Value*>(values);
  const uint32_t unit = uint32_t{1} << fraction;
  uint32_t sums = 0;
  for (uint64_t i = 0; i < n; ++i) sums |= (BitsOf(value[i]) & (kSign - 1)) + unit;
  return (sums & kSign) == 0;
}

}  // namespace

bool AllFinite(const void* values, DType dtype, uint64_t n) {
  switch (dtype) {
    case DType::kFloat32:
      return NoneCarries<float>(values, n, 23);
    case DType::kBFloat16:
      return NoneCarries<BFloat16>(values, n, 7);
    case DType::kFloat16:
      return NoneCarries<Float16>(values, n, 10);
  }
  return false;
}

}  // namespace penstock::kernels
