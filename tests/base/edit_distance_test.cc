#include "base/edit_distance.h"

#include <gtest/gtest.h>

namespace penstock {
namespace {

TEST(EditDistanceTest, CountsLettersPutInTakenOutAndReplaced) {
  EXPECT_EQ(EditDistance("", ""), 0);
  EXPECT_EQ(EditDistance("", "abc"), 3);
  EXPECT_EQ(EditDistance("abc", ""), 3);
  EXPECT_EQ(EditDistance("layer", "layers"), 1);
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3);
}

TEST(EditDistanceTest, CaseDoesNotCount) { EXPECT_EQ(EditDistance("Stage", "sTAGE"), 0); }

}  // namespace
}  // namespace penstock
