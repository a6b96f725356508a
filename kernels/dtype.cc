#include "kernels/dtype.h"

#include <bit>
#include <cstdint>

namespace penstock::kernels {

uint16_t RoundToFloat16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 16 & 0x8000;
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) {  // NaN: quiet, with the upper bits of its payload
    return static_cast<uint16_t>(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
  }
  if (magnitude >= 0x47800000) return static_cast<uint16_t>(sign | 0x7c00);  // 2^16 and above
  if (magnitude >= 0x38800000) {  // 2^-14 and above: normal; rounding may carry into infinity
    const uint32_t rebased = magnitude - (112U << 23);
    return static_cast<uint16_t>(sign | (rebased + 0xfff + (rebased >> 13 & 1)) >> 13);
  }
  const uint32_t exponent = magnitude >> 23;
  if (exponent < 102) return static_cast<uint16_t>(sign);  // below 2^-25: nearer to zero
  // Denormal: the significand in units of 2^-24, the smallest binary16.
  const uint32_t significand = (magnitude & 0x7fffff) | 0x800000;
  const uint32_t shift = 126 - exponent;
  const uint32_t odd = significand >> shift & 1;
  const uint32_t below_half = (1U << (shift - 1)) - 1;
  return static_cast<uint16_t>(sign | (significand + below_half + odd) >> shift);
}

float Float16ToFloat(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t exponent = bits >> 10 & 0x1f;
  const uint32_t mantissa = bits & 0x3ff;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000 | mantissa << 13);
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
  if (mantissa == 0) return std::bit_cast<float>(sign);
  const auto top = static_cast<uint32_t>(std::bit_width(mantissa)) - 1;  // value: mantissa * 2^-24
  return std::bit_cast<float>(sign | (top + 103) << 23 | (mantissa << (23 - top) & 0x7fffff));
}

}  // namespace penstock::kernels
