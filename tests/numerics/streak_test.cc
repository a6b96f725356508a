#include "numerics/streak.h"

#include <gtest/gtest.h>

#include "tests/numerics/support.h"

namespace penstock::train {
namespace {

/// The reports of a run whose steps overflow from `first` to `last`, by the rules of its scaler.
std::vector<Report> ReportsOf(ScalerRules rules, uint64_t first, uint64_t last,
                              double median_step_s = 105) {
  const RunFacts facts = ThreeLayers();
  StreakDetector detector(facts);
  std::vector<Report> reports;
  for (uint64_t step = 1; step <= last; ++step) {
    const bool overflow = step >= first;
    StepNumbers numbers = overflow ? OverflowIn(step, 3) : GoodStep(step);
    numbers.loss_scale = rules.scale;
    numbers.median_step_s = median_step_s;
    const bool ended = !rules.Step(overflow);
    numbers.steps_to_stop = ended ? 0 : rules.StepsToStop();
    if (auto report = detector.Step(numbers)) reports.push_back(*report);
    if (ended) break;
  }
  return reports;
}

TEST(StreakTest, TheSeedsRunIsForeseenTenStepsBeforeItsEnd) {
  const std::vector<Report> reports = ReportsOf({.scale = 4096, .hysteresis = 1}, 444, 456);
  ASSERT_EQ(reports.size(), 1U);
  EXPECT_EQ(reports[0].step, 446U);
  EXPECT_EQ(reports[0].kind, ReportKind::kStreak);
  EXPECT_EQ(reports[0].value, 10);
  EXPECT_TRUE(Says(reports[0], "10 steps to the stop (step 456, in about 18 min)"))
      << reports[0].message;
}

TEST(StreakTest, OtherStartsHaveTheirOwnEnds) {
  const auto first = [](ScalerRules rules, uint64_t from) {
    const std::vector<Report> reports = ReportsOf(rules, from, from + 30);
    return reports.size() == 1 ? reports[0] : Report{};
  };
  const Report s1 = first({.scale = 262144, .hysteresis = 2}, 1);
  EXPECT_EQ(s1.step, 10U);
  EXPECT_TRUE(Says(s1, "(step 20,")) << s1.message;
  const Report s2 = first({.scale = 65536, .hysteresis = 1}, 51);
  EXPECT_EQ(s2.step, 57U);
  EXPECT_TRUE(Says(s2, "(step 67,")) << s2.message;
}

TEST(StreakTest, AScaleThatComesDownFarFromItsMinimumIsNotToldOf) {
  EXPECT_TRUE(ReportsOf({.scale = 65536, .hysteresis = 2}, 30, 36).empty());
  EXPECT_EQ(ReportsOf({.scale = 65536, .hysteresis = 2}, 30, 37).size(), 1U);
}

TEST(StreakTest, AScaleThatNothingMendsIsToldOfAtTheThird) {
  RunFacts facts = ThreeLayers();
  facts.dynamic_loss_scale = false;
  StreakDetector detector(facts);
  for (uint64_t step = 1; step <= 5; ++step) {
    StepNumbers numbers = OverflowIn(step, 0);
    numbers.steps_to_stop = 20 - step;
    EXPECT_EQ(detector.Step(numbers).has_value(), step == 3) << step;
  }
}

TEST(StreakTest, AForwardInItThatIsNotFiniteNeitherHidesItNorHasItToldTwice) {
  const RunFacts facts = ThreeLayers();
  for (uint64_t broken = 1; broken <= 12; ++broken) {
    StreakDetector detector(facts);
    std::vector<uint64_t> told;
    for (uint64_t step = 1; step <= 13; ++step) {
      StepNumbers numbers = step == broken ? BrokenForward(step) : OverflowIn(step, 3);
      // Another such forward would end the run at once.
      numbers.steps_to_stop = step == broken ? 1 : 16 - step;
      if (detector.Step(numbers)) told.push_back(step);
    }
    const uint64_t expected = broken >= 3 && broken < 6 ? broken : 6;
    EXPECT_EQ(told, std::vector<uint64_t>{expected}) << broken;
  }
}

TEST(StreakTest, TheStepThatEndsTheRunIsNotToldOf) {
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    const RunFacts facts = ThreeLayers(dtype);
    StreakDetector detector(facts);
    for (uint64_t step = 1; step <= 3; ++step) {
      StepNumbers numbers = step == 1 ? OverflowIn(step, 3) : BrokenForward(step);
      numbers.steps_to_stop = step == 1 ? 15 : 3 - step;
      EXPECT_FALSE(detector.Step(numbers)) << step;
    }
  }
}

TEST(StreakTest, NamesTheTensorAndItsPass) {
  const std::vector<Report> reports = ReportsOf({.scale = 4096, .hysteresis = 1}, 10, 14);
  ASSERT_EQ(reports.size(), 1U);
  EXPECT_EQ(reports[0].tensor, "h.1.mlp.c_fc.weight");
  EXPECT_EQ(reports[0].layer, 1U);
  EXPECT_EQ(reports[0].pass, Pass::kBackward);
}

TEST(StreakTest, TwoSkippedInARowAreNone) {
  const RunFacts facts = ThreeLayers();
  StreakDetector detector(facts);
  for (uint64_t step = 1; step <= 90; ++step) {
    EXPECT_FALSE(detector.Step(step % 3 == 0 ? GoodStep(step) : OverflowIn(step, 0)));
  }
}

TEST(StreakTest, WithoutAForecastOrAMedianItSaysWhatItKnows) {
  const RunFacts facts = ThreeLayers(DType::kBFloat16);
  StreakDetector detector(facts);
  std::optional<Report> report;
  for (uint64_t step = 1; step <= 3; ++step) report = detector.Step(OverflowIn(step, 0));
  ASSERT_TRUE(report);
  EXPECT_FALSE(report->value);
  EXPECT_FALSE(Says(*report, "to the stop")) << report->message;
  const std::vector<Report> untimed = ReportsOf({.scale = 4096, .hysteresis = 1}, 1, 5, 0);
  ASSERT_EQ(untimed.size(), 1U);
  EXPECT_TRUE(Says(untimed[0], "(step 13);")) << untimed[0].message;
}

}  // namespace
}  // namespace penstock::train
