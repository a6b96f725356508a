#include "base/median.h"

#include <gtest/gtest.h>

namespace penstock {
namespace {

TEST(MedianTest, IsTheMiddleOrTheMeanOfBothMiddleValues) {
  EXPECT_EQ(MedianOf({3}), 3);
  EXPECT_EQ(MedianOf({9, 1, 2}), 2);
  EXPECT_EQ(MedianOf({4, 1, 2, 9}), 3);
}

}  // namespace
}  // namespace penstock
