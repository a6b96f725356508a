#include "train/loop/slow_rank.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

namespace penstock::train {
namespace {

/// Steps of a second each, in which each rank waits for so long. Returns every finding.
std::vector<SlowRank::Finding> Findings(uint64_t steps,
                                        const std::vector<std::vector<double>>& waits) {
  SlowRank slow;
  std::vector<double> waited(waits.front().size());
  std::vector<SlowRank::Finding> findings;
  for (uint64_t step = 0; step < steps; ++step) {
    const std::vector<double>& in_step = waits[step % waits.size()];
    for (size_t rank = 0; rank < waited.size(); ++rank) waited[rank] += in_step[rank];
    if (const auto found = slow.Step(waited, static_cast<double>(step))) findings.push_back(*found);
  }
  return findings;
}

constexpr uint64_t kWindow = SlowRank::kSteps + 1;  // the first step begins it

TEST(SlowRankTest, OneForWhichAllOthersWaitIsNamedOnce) {
  const std::vector<SlowRank::Finding> found = Findings(5 * kWindow, {{0.4, 0.1, 0.5, 0.4}});
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].rank, 1U);
  EXPECT_NEAR(found[0].share, 0.3, 1e-9);
}

TEST(SlowRankTest, ItTakesAWholeWindow) {
  EXPECT_TRUE(Findings(kWindow - 1, {{0.5, 0}}).empty());
  EXPECT_EQ(Findings(kWindow, {{0.5, 0}}).size(), 1U);
}

TEST(SlowRankTest, ShortWaitsNameNoRank) {
  EXPECT_TRUE(Findings(5 * kWindow, {{0.3, 0.11, 0.3}}).empty());
}

TEST(SlowRankTest, TwoThatWaitAlikeAreBothNotNamed) {
  EXPECT_TRUE(Findings(5 * kWindow, {{0.6, 0.1, 0.1}}).empty());
}

TEST(SlowRankTest, RanksThatAreLastInTurnAreNotNamed) {
  EXPECT_TRUE(Findings(5 * kWindow, {{0.5, 0, 0.5}, {0, 0.5, 0.5}, {0.5, 0.5, 0}}).empty());
}

TEST(SlowRankTest, ASingleRankNeverWaits) { EXPECT_TRUE(Findings(kWindow, {{0.5}}).empty()); }

}  // namespace
}  // namespace penstock::train
