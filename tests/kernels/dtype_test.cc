#include "kernels/dtype.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace penstock::kernels {
namespace {

float FromBits(uint32_t bits) { return std::bit_cast<float>(bits); }
uint32_t ToBits(float value) { return std::bit_cast<uint32_t>(value); }
bool IsNaN16(uint16_t bits) { return (bits & 0x7fff) > 0x7c00; }

// All patterns in an optimised build; under sanitizers and in debug builds every 1009th, and all
// that lie within 2 of a place where hi or the sign changes.
#ifdef NDEBUG
constexpr uint64_t kStride = 1;
#else
constexpr uint64_t kStride = 1009;
#endif

uint64_t LostBySplit(uint32_t bits) { return ToBits(Join(Split(FromBits(bits)))) != bits ? 1 : 0; }

TEST(DTypeTest, SizesAndNames) {
  EXPECT_EQ(SizeOf(DType::kFloat32), 4_B);
  EXPECT_EQ(SizeOf(DType::kBFloat16), 2_B);
  EXPECT_EQ(SizeOf(DType::kFloat16), 2_B);
  EXPECT_STREQ(ToString(DType::kFloat32), "fp32");
  EXPECT_STREQ(ToString(DType::kBFloat16), "bf16");
  EXPECT_STREQ(ToString(DType::kFloat16), "fp16");
}

TEST(SplitMasterTest, RestoresEveryPattern) {
  uint64_t lost = 0;
  for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += kStride) {
    lost += LostBySplit(static_cast<uint32_t>(bits));
  }
  EXPECT_EQ(lost, 0u);
}

TEST(SplitMasterTest, RestoresEveryPatternAroundEachChangeOfHi) {
  uint64_t lost = 0;
  for (uint32_t hi = 0; hi < 1U << 16; ++hi) {
    for (const uint32_t lo :
         {0x0000U, 0x0001U, 0x7ffeU, 0x7fffU, 0x8000U, 0x8001U, 0xfffeU, 0xffffU}) {
      lost += LostBySplit(hi << 16 | lo);
    }
  }
  EXPECT_EQ(lost, 0u);
}

TEST(SplitMasterTest, EveryPairOfHalvesIsTheSplitOfItsMaster) {
  uint64_t wrong = 0;
  for (uint32_t hi = 0; hi < 1U << 16; ++hi) {
    for (const int lo : {-32768, -32767, -1, 0, 1, 32766, 32767}) {
      const auto half = static_cast<int16_t>(lo);
      const SplitMaster again = Split(Join({BFloat16{static_cast<uint16_t>(hi)}, half}));
      wrong += again.hi.bits != hi || again.lo != half ? 1 : 0;
    }
  }
  EXPECT_EQ(wrong, 0u);
}

TEST(SplitMasterTest, HiIsTheNearestWithTiesAwayFromZero) {
  for (uint32_t hi = 0; hi < 0x7f7f; ++hi) {  // finite, and so is the next one
    for (const uint32_t sign : {0U, 0x8000U}) {
      const uint32_t below = (hi | sign) << 16;
      ASSERT_EQ(Split(FromBits(below)).hi.bits, hi | sign);
      ASSERT_EQ(Split(FromBits(below + 0x7fff)).hi.bits, hi | sign);
      ASSERT_EQ(Split(FromBits(below + 0x8000)).hi.bits, (hi | sign) + 1) << "a tie goes away";
      ASSERT_EQ(Split(FromBits(below + 0x8001)).hi.bits, (hi | sign) + 1);
      ASSERT_EQ(Split(FromBits(below + 0xffff)).hi.bits, (hi | sign) + 1);
    }
  }
}

TEST(BFloat16Test, EveryValueSurvivesTheWayThroughFloat) {
  for (uint32_t bits = 0; bits < 1U << 16; ++bits) {
    const BFloat16 value{static_cast<uint16_t>(bits)};
    const uint32_t quiet = (bits & 0x7fff) > 0x7f80 ? bits | 0x40 : bits;
    ASSERT_EQ(RoundToBFloat16(ToFloat(value)).bits, quiet);
  }
}

TEST(BFloat16Test, RoundsToNearestAndTiesToEven) {
  for (uint32_t upper = 0; upper < 0x7f80; ++upper) {
    const uint32_t below = upper << 16;
    ASSERT_EQ(RoundToBFloat16(FromBits(below + 0x7fff)).bits, upper);
    ASSERT_EQ(RoundToBFloat16(FromBits(below + 0x8000)).bits, upper + (upper & 1));
    ASSERT_EQ(RoundToBFloat16(FromBits(below + 0x8001)).bits, upper + 1);
  }
  EXPECT_EQ(RoundToBFloat16(std::numeric_limits<float>::max()).bits, 0x7f80) << "to infinity";
  EXPECT_EQ(RoundToBFloat16(FromBits(0xff7f8000)).bits, 0xff80);
}

TEST(BFloat16Test, NaNStaysNaN) {
  for (const uint32_t bits : {0x7f800001U, 0x7fffffffU, 0xff800001U, 0xffffffffU, 0x7fc00000U}) {
    EXPECT_TRUE(std::isnan(ToFloat(RoundToBFloat16(FromBits(bits))))) << std::hex << bits;
  }
}

/// The value of a finite binary16 by its definition.
double Float16Value(uint32_t bits) {
  const int exponent = static_cast<int>(bits >> 10 & 0x1f);
  const int mantissa = static_cast<int>(bits & 0x3ff);
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

TEST(Float16Test, EveryPatternHasItsValue) {
  for (uint32_t bits = 0; bits < 1U << 16; ++bits) {
    const float value = Float16ToFloat(static_cast<uint16_t>(bits));
    if ((bits & 0x7c00) != 0x7c00) {
      ASSERT_EQ(value, Float16Value(bits)) << std::hex << bits;
    } else if ((bits & 0x3ff) == 0) {
      ASSERT_TRUE(std::isinf(value));
    } else {
      ASSERT_TRUE(std::isnan(value));
    }
    ASSERT_EQ(std::signbit(value), (bits & 0x8000) != 0);
  }
}

TEST(Float16Test, EveryPatternSurvivesTheWayThroughFloat) {
  for (uint32_t bits = 0; bits < 1U << 16; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const uint32_t expected = IsNaN16(half) ? bits | 0x200 : bits;
    ASSERT_EQ(RoundToFloat16(Float16ToFloat(half)), expected) << std::hex << bits;
  }
}

TEST(Float16Test, RoundsToNearestAndTiesToEvenBetweenAllNeighbours) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (uint32_t lower = 0; lower < 0x7c00; ++lower) {
    // Beyond the largest value the next step of the same size stands for infinity.
    const double next = lower == 0x7bff ? 65536.0 : Float16Value(lower + 1);
    const auto middle = static_cast<float>((Float16Value(lower) + next) / 2);
    const uint32_t even = lower + (lower & 1);
    for (const uint32_t sign : {0U, 0x8000U}) {
      const float side = sign != 0 ? -1.0f : 1.0f;
      ASSERT_EQ(RoundToFloat16(side * middle), even | sign) << std::hex << lower;
      ASSERT_EQ(RoundToFloat16(side * std::nextafter(middle, 0.0f)), lower | sign);
      ASSERT_EQ(RoundToFloat16(side * std::nextafter(middle, infinity)), (lower + 1) | sign);
    }
  }
}

TEST(Float16Test, ExtremesOfFloat) {
  using Limits = std::numeric_limits<float>;
  EXPECT_EQ(RoundToFloat16(Limits::denorm_min()), 0);
  EXPECT_EQ(RoundToFloat16(-Limits::min()), 0x8000);
  EXPECT_EQ(RoundToFloat16(Limits::max()), 0x7c00);
  EXPECT_EQ(RoundToFloat16(-Limits::infinity()), 0xfc00);
  EXPECT_TRUE(IsNaN16(RoundToFloat16(FromBits(0x7f800001))));
  EXPECT_TRUE(IsNaN16(RoundToFloat16(FromBits(0xffffffff))));
}

__attribute__((noinline)) float MaskedWhere(float value, bool mask) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return std::bit_cast<float>(mask ? bits & 0xffff0000 : bits);
}

// GCC 12 compiles MaskedWhere to nothing at -O2 unless told otherwise (cmake/penstock.cmake), or
// its arguments are known.
TEST(CompilerTest, KeepsAConditionalClearingOfAFloatsLowBits) {
  const volatile float value = 1.0F + 0x1p-20F;
  for (const volatile bool mask : {true, false}) {
    EXPECT_EQ(MaskedWhere(value, mask), mask ? 1.0F : value);
  }
}

}  // namespace
}  // namespace penstock::kernels
