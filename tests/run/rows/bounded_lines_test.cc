#include "run/rows/bounded_lines.h"

#include <gtest/gtest.h>

#include <sstream>
#include <string>

namespace penstock::train {
namespace {

using Line = BoundedLines::Line;

TEST(BoundedLines, ALineOfTheLongestLengthIsWholeAndOneByteMoreIsTooLong) {
  const std::string longest(kMaxLine.value, 'x');
  std::istringstream file(longest + "\nnext\n" + longest + "x\n");
  BoundedLines lines(file, "rows");
  EXPECT_EQ(lines.Next(), Line::kComplete);
  EXPECT_EQ(lines.text(), longest);
  EXPECT_EQ(lines.Next(), Line::kComplete);
  EXPECT_EQ(lines.text(), "next");
  EXPECT_EQ(lines.begin(), FileOffset{kMaxLine.value + 1});
  EXPECT_EQ(lines.Next(), Line::kTooLong);
  EXPECT_EQ(lines.number(), 3U);
  EXPECT_NE(lines.TooLong().message.find("rows, line 3"), std::string::npos);
}

TEST(BoundedLines, ALineOfTheLongestLengthWithoutItsBreakIsTorn) {
  std::istringstream file(std::string(kMaxLine.value, 'x'));
  BoundedLines lines(file, "rows");
  EXPECT_EQ(lines.Next(), Line::kTorn);
  EXPECT_EQ(lines.Next(), Line::kEnd);
  EXPECT_TRUE(lines.status().ok());
}

}  // namespace
}  // namespace penstock::train
