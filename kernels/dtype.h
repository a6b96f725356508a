// Element types and the conversions between them, written in integers so that every target agrees.
#pragma once

#include <bit>
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
/// from zero), lo is what restores the master exactly. Bijective on all 2^32 patterns.
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

/// fp16 (binary16), nearest even, for exports; values beyond its range become infinite.
uint16_t RoundToFloat16(float value);
float Float16ToFloat(uint16_t bits);

}  // namespace penstock::kernels
