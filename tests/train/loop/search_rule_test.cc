#include "train/loop/search_rule.h"

#include <gtest/gtest.h>

#include "numerics/thresholds.h"

namespace penstock::train {
namespace {

/// A dynamic loss scale that is far from its minimum.
constexpr uint64_t kFar = 15;

EndedStep Skipped(uint64_t step, uint64_t in_a_row, bool forward_finite = true) {
  return {.step = step,
          .forward_finite = forward_finite,
          .skipped_in_a_row = in_a_row,
          .steps_to_stop = forward_finite ? kFar : 1};
}

TEST(SearchRuleTest, OfAStreakTheFirstStepThatIsReportedIsSearchedOnce) {
  SearchRule rule(/*dynamic_loss_scale=*/true, /*every=*/false);
  EXPECT_FALSE(rule.Due({.step = 1, .steps_to_stop = kFar}));
  for (uint64_t n = 1; n < kOverflowsToReport; ++n) EXPECT_FALSE(rule.Due(Skipped(1 + n, n)));
  EXPECT_TRUE(rule.Due(Skipped(7, kOverflowsToReport)));
  rule.Found(FirstNonFinite{.pass = Pass::kBackward, .tensor = "h.1"});
  EXPECT_FALSE(rule.Due(Skipped(8, kOverflowsToReport + 1)));
  ASSERT_TRUE(rule.first());
  EXPECT_EQ(rule.first()->tensor, "h.1");
  EXPECT_FALSE(rule.Due({.step = 9, .steps_to_stop = kFar}));
  EXPECT_FALSE(rule.first()) << "of another streak";
}

TEST(SearchRuleTest, AForwardThatFailsInAStreakOfOverflowsIsSearchedAnew) {
  SearchRule rule(true, false);
  for (uint64_t n = 1; n <= kOverflowsToReport; ++n) rule.Due(Skipped(n, n));
  rule.Found(FirstNonFinite{.pass = Pass::kBackward, .tensor = "h.1"});
  EXPECT_TRUE(rule.Due(Skipped(7, 7, /*forward_finite=*/false)));
  EXPECT_FALSE(rule.first()) << "what was found before is not what fails";
  rule.Found(FirstNonFinite{.pass = Pass::kForward, .tensor = "h.0"});
  EXPECT_FALSE(rule.Due(Skipped(8, 8, false)));
  EXPECT_EQ(rule.first()->tensor, "h.0");
}

TEST(SearchRuleTest, AReplaySearchesEverySkippedStep) {
  SearchRule rule(true, /*every=*/true);
  for (uint64_t n = 1; n <= 4; ++n) EXPECT_TRUE(rule.Due(Skipped(n, n)));
  EXPECT_FALSE(rule.Due({.step = 5, .steps_to_stop = kFar}));
  EXPECT_TRUE(rule.Due(Skipped(6, 1)));
}

TEST(SearchRuleTest, AScaleThatNothingMendsIsSearchedAtOnceAndNotSoonAgain) {
  SearchRule rule(/*dynamic_loss_scale=*/false, false);
  EXPECT_TRUE(rule.Due(Skipped(1, 1)));
  EXPECT_FALSE(rule.Due({.step = 2}));
  EXPECT_FALSE(rule.Due(Skipped(3, 1)));
  EXPECT_TRUE(rule.Due(Skipped(1 + kQuietSteps, 1)));
}

}  // namespace
}  // namespace penstock::train
