// Element types and the conversions between them, written in integers so that every target agrees.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "base/dtype.h"

namespace penstock::kernels {

using penstock::DType;
using penstock::SizeOf;

/// bfloat16: the upper half of a binary32.
struct BFloat16 {
  uint16_t bits = 0;
};

constexpr float ToFloat(BFloat16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}

/// Rounds to nearest even; NaN stays NaN (quiet).
constexpr BFloat16 RoundToBFloat16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return BFloat16{static_cast<uint16_t>(bits >> 16 | 0x40)};
  return BFloat16{static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

/// An fp32 master weight in two halves: hi is the bfloat16 that kernels use (nearest, ties away
/// from zero), lo restores the master exactly. Bijective on all 2^32 patterns.
struct SplitMaster {
  BFloat16 hi;
  int16_t lo;
};

constexpr SplitMaster Split(float master) {
  const auto bits = std::bit_cast<uint32_t>(master);
  const uint32_t hi = (bits + 0x8000) >> 16;
  return {BFloat16{static_cast<uint16_t>(hi)}, static_cast<int16_t>(bits - (hi << 16))};
}

constexpr float Join(SplitMaster split) {
  const uint32_t hi = static_cast<uint32_t>(split.hi.bits) << 16;
  return std::bit_cast<float>(hi + static_cast<uint32_t>(static_cast<int32_t>(split.lo)));
}

/// binary16, nearest even; values beyond its range become infinite, NaN stays NaN (quiet).
constexpr uint16_t RoundToFloat16(float value) {
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

/// Exact, denormals included.
constexpr float Float16ToFloat(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t exponent = bits >> 10 & 0x1f;
  const uint32_t mantissa = bits & 0x3ff;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000 | mantissa << 13);
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
  if (mantissa == 0) return std::bit_cast<float>(sign);
  const auto top = static_cast<uint32_t>(std::bit_width(mantissa)) - 1;  // value: mantissa * 2^-24
  return std::bit_cast<float>(sign | (top + 103) << 23 | (mantissa << (23 - top) & 0x7fffff));
}

/// fp16 as an element type.
struct Float16 {
  uint16_t bits = 0;
};

constexpr float ToFloat(Float16 value) { return Float16ToFloat(value.bits); }

/// Whether a value that is finite stays so when it is rounded to fp16, whose largest is 65504.
inline bool FitsFloat16(float value) {
  return !std::isfinite(value) || std::isfinite(Float16ToFloat(RoundToFloat16(value)));
}

}  // namespace penstock::kernels
