#include "train/launch/rank_lines.h"

#include <gtest/gtest.h>

#include <string>

namespace penstock::train {
namespace {

TEST(RankLines, LinesAreWholeAndNameTheRankHoweverTheyArrive) {
  RankLines lines(4);
  EXPECT_EQ(lines.Add(3, "half a "), "");
  EXPECT_EQ(lines.Add(1, "one\n\ntwo\nthr"), "rank 1: one\nrank 1: \nrank 1: two\n");
  EXPECT_EQ(lines.Add(3, "line\n\xff"), "rank 3: half a line\n");
  EXPECT_EQ(lines.Finish(3), "rank 3: \xff\n");
  EXPECT_EQ(lines.Finish(3), "");
  EXPECT_EQ(lines.Add(1, "ee\n"), "rank 1: three\n");
  EXPECT_EQ(lines.Finish(1), "");
}

TEST(RankLines, ALineWithoutAnEndIsCutAndNothingOfItIsLost) {
  constexpr size_t kMaxLine = RankLines::kMaxLine;
  RankLines lines(2);
  EXPECT_EQ(lines.Add(1, std::string(kMaxLine - 1, 'x')), "");
  const std::string whole = "rank 1: " + std::string(kMaxLine, 'x') + "\n";
  EXPECT_EQ(lines.Add(1, std::string(kMaxLine + 2, 'x')), whole + whole);
  EXPECT_EQ(lines.Finish(1), "rank 1: x\n");
  EXPECT_EQ(lines.Add(1, std::string(kMaxLine, 'x') + "\n"), whole);
  EXPECT_EQ(lines.Finish(1), "");
}

TEST(RankLines, NoticesAreRankZerosAndErrorsAndWarningsAreNot) {
  RankLines lines(3);
  EXPECT_EQ(lines.Add(2, "penstock: warning: slow\n"), "rank 2: penstock: warning: slow\n");
  EXPECT_EQ(lines.Add(1, "penstock: a notice\npenstock: error: broken\npenstock is a word\n"),
            "rank 1: penstock: error: broken\nrank 1: penstock is a word\n");
}

TEST(RankLines, AnErrorThatSeveralRanksReportComesOnce) {
  RankLines lines(4);
  EXPECT_EQ(lines.Add(2, "penstock: error: rank 0 ended\n"),
            "rank 2: penstock: error: rank 0 ended\n");
  EXPECT_EQ(lines.Add(1, "penstock: error: rank 0 ended\n"), "");
  EXPECT_EQ(lines.Add(3, "penstock: error: no memory\n"), "rank 3: penstock: error: no memory\n");
  EXPECT_EQ(lines.Add(1, "same\n") + lines.Add(2, "same\n"), "rank 1: same\nrank 2: same\n");
}

TEST(RankLines, ManyDifferentErrorsAllCome) {
  RankLines lines(2);
  for (int i = 0; i < 1000; ++i) {
    const std::string line = "penstock: error: " + std::to_string(i) + "\n";
    EXPECT_EQ(lines.Add(1, line), "rank 1: " + line);
  }
}

}  // namespace
}  // namespace penstock::train
