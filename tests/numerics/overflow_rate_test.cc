#include "numerics/overflow_rate.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/numerics/support.h"

namespace penstock::train {
namespace {

std::vector<Report> ReportsOf(const RunFacts& facts, uint64_t steps,
                              const std::set<uint64_t>& overflows) {
  OverflowRateDetector detector(facts);
  std::vector<Report> reports;
  for (uint64_t step = 1; step <= steps; ++step) {
    const bool overflow = overflows.contains(step);
    if (auto report = detector.Step(overflow ? OverflowIn(step, 0) : GoodStep(step))) {
      reports.push_back(*report);
    }
  }
  return reports;
}

TEST(OverflowRateTest, AScaleThatGrowsUndisturbedGivesNone) {
  EXPECT_TRUE(ReportsOf(ThreeLayers(), 3000, {}).empty());
}

TEST(OverflowRateTest, AnOverflowAtEachDoublingIsHealthyWithAnyHysteresis) {
  EXPECT_TRUE(ReportsOf(ThreeLayers(), 5000, {1, 2, 1003, 1004, 2005, 2006, 3007, 3008}).empty());
}

TEST(OverflowRateTest, TheThirdStreakWithinAWindowIsReported) {
  const std::vector<Report> reports =
      ReportsOf(ThreeLayers(), 3000, {1300, 1600, 1601, 2100, 2150});
  ASSERT_EQ(reports.size(), 1U);
  EXPECT_EQ(reports[0].step, 2100U);
  EXPECT_EQ(reports[0].value, 3);
}

TEST(OverflowRateTest, TheWindowIsThatOfTheRun) {
  RunFacts facts = ThreeLayers();
  facts.loss_scale_window = 100;
  EXPECT_TRUE(ReportsOf(facts, 1500, {200, 400, 900}).empty());
  EXPECT_EQ(ReportsOf(facts, 1500, {200, 220, 240}).size(), 1U);
}

TEST(OverflowRateTest, InTheFirstWindowAScaleMayComeDownByManyHalvings) {
  EXPECT_TRUE(ReportsOf(ThreeLayers(), 900, {10, 20, 30, 40, 50, 60, 70, 80}).empty());
  EXPECT_EQ(ReportsOf(ThreeLayers(), 900, {10, 20, 30, 40, 50, 60, 70, 80, 90}).size(), 1U);
}

TEST(OverflowRateTest, AStaticScaleHasNoWindow) {
  RunFacts facts = ThreeLayers();
  facts.dynamic_loss_scale = false;
  EXPECT_TRUE(ReportsOf(facts, 1000, {10, 20, 30, 40}).empty());
}

}  // namespace
}  // namespace penstock::train
