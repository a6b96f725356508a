#include "tools/value_difference.h"

#include <gtest/gtest.h>

#include <bit>
#include <limits>
#include <vector>

namespace penstock::train {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

ValueDifference Of(const std::vector<float>& a, const std::vector<float>& b) {
  ValueDifference difference;
  difference.Add(a, b);
  return difference;
}

TEST(ValueDifference, EqualBitsAreNoDifferenceAndANanEqualsItself) {
  const ValueDifference same = Of({1, -0.0F, kNan, kInfinity}, {1, -0.0F, kNan, kInfinity});
  EXPECT_EQ(same.elements(), 4u);
  EXPECT_EQ(same.differing(), 0u);
  EXPECT_EQ(same.not_finite_a(), 2u);
  EXPECT_EQ(same.not_finite_b(), 2u);
  EXPECT_FALSE(same.largest_at().has_value());
  EXPECT_EQ(Of({}, {}).differing(), 0u);
}

TEST(ValueDifference, TheLargestAreFoundWhereTheyAre) {
  // Absolute largest at 2, relative largest at 3.
  const ValueDifference found = Of({1, 5, 100, 0.5F, 7}, {1, 5.5F, 104, 1.5F, 7});
  EXPECT_EQ(found.differing(), 3u);
  EXPECT_EQ(found.first(), 1u);
  EXPECT_EQ(found.largest_at(), 2u);
  EXPECT_EQ(found.largest(), 4);
  EXPECT_DOUBLE_EQ(found.largest_relative(), 1.0 / 1.5);
}

TEST(ValueDifference, ChunksAddUpToOneTensor) {
  ValueDifference found;
  found.Add(std::vector<float>{1, 2}, std::vector<float>{1, 2});
  found.Add(std::vector<float>{3, kNan}, std::vector<float>{4, 4});
  found.Add(std::vector<float>{5}, std::vector<float>{7});
  EXPECT_EQ(found.elements(), 5u);
  EXPECT_EQ(found.differing(), 3u);
  EXPECT_EQ(found.first(), 2u);
  EXPECT_EQ(found.largest_at(), 4u);
  EXPECT_EQ(found.not_finite_a(), 1u);
  EXPECT_EQ(found.not_finite_b(), 0u);
}

TEST(ValueDifference, UlpsCountTheValuesBetween) {
  const float next = std::bit_cast<float>(std::bit_cast<uint32_t>(1.0F) + 3);
  EXPECT_EQ(Of({1}, {next}).largest_ulps(), 3u);
  EXPECT_EQ(Of({-1}, {-next}).largest_ulps(), 3u);
  const float smallest = std::bit_cast<float>(uint32_t{1});
  EXPECT_EQ(Of({smallest}, {-smallest}).largest_ulps(), 2u);
  const float most = std::numeric_limits<float>::max();
  EXPECT_EQ(Of({most}, {-most}).largest_ulps(), 2u * 0x7f7fffff);
}

TEST(ValueDifference, ZeroAndMinusZeroDifferByNothing) {
  const ValueDifference zeros = Of({0.0F}, {-0.0F});
  EXPECT_EQ(zeros.differing(), 1u);
  EXPECT_EQ(zeros.largest_at(), 0u);
  EXPECT_EQ(zeros.largest(), 0);
  EXPECT_EQ(zeros.largest_relative(), 0);
  EXPECT_EQ(zeros.largest_ulps(), 0u);
}

TEST(ValueDifference, WhatIsNotFiniteDiffersWithoutASize) {
  const ValueDifference found = Of({kInfinity, 1}, {-kInfinity, kNan});
  EXPECT_EQ(found.differing(), 2u);
  EXPECT_FALSE(found.largest_at().has_value());
  EXPECT_EQ(found.not_finite_a(), 1u);
  EXPECT_EQ(found.not_finite_b(), 2u);
}

TEST(ValueDifference, DifferencesBeyondFp32AreMeasured) {
  const float most = std::numeric_limits<float>::max();
  EXPECT_EQ(Of({most}, {-most}).largest(), 2.0 * most);
}

}  // namespace
}  // namespace penstock::train
