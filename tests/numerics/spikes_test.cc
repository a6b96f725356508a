#include "numerics/spikes.h"

#include <gtest/gtest.h>

#include "tests/numerics/support.h"

namespace penstock::train {
namespace {

std::vector<Report> LossReports(const std::vector<double>& losses) {
  const RunFacts facts = ThreeLayers(DType::kBFloat16);
  LossSpikeDetector detector(facts);
  std::vector<Report> reports;
  for (size_t i = 0; i < losses.size(); ++i) {
    if (auto report = detector.Step(GoodStep(i + 1, losses[i]))) reports.push_back(*report);
  }
  return reports;
}

std::vector<Report> NormReports(const std::vector<double>& norms) {
  NormSpikeDetector detector;
  std::vector<Report> reports;
  for (size_t i = 0; i < norms.size(); ++i) {
    StepNumbers numbers = GoodStep(i + 1);
    numbers.grad_norm = norms[i];
    if (auto report = detector.Step(numbers)) reports.push_back(*report);
  }
  return reports;
}

/// 200 losses that fall from 5.5 to 2.3, with a little noise of a fixed pattern.
std::vector<double> Falling() {
  std::vector<double> losses;
  for (int i = 0; i < 200; ++i) {
    losses.push_back(2.3 + 3.2 * std::exp(-i / 30.0) + 0.02 * std::sin(i * 12.9898));
  }
  return losses;
}

TEST(LossSpikeTest, TheDivergingRunIsFoundInItsThirdStepAndOnce) {
  const std::vector<Report> reports =
      LossReports({5.49, 4.20, 14.82, 14.68, 16.84, 19.86, 21.35, 18, 16, 15});
  ASSERT_EQ(reports.size(), 1U);
  EXPECT_EQ(reports[0].step, 3U);
  EXPECT_EQ(reports[0].kind, ReportKind::kLossSpike);
  EXPECT_EQ(reports[0].value, 14.82);
  EXPECT_TRUE(Says(reports[0], "6.545")) << reports[0].message;
}

TEST(LossSpikeTest, ALossThatStartsAboveUniformAndFallsIsNone) {
  std::vector<double> losses;
  for (int i = 0; i < 40; ++i) losses.push_back(11.0 - 0.13 * i);  // badly initialised
  EXPECT_TRUE(LossReports(losses).empty());
}

TEST(LossSpikeTest, ARunThatFallsQuietlyGivesNone) { EXPECT_TRUE(LossReports(Falling()).empty()); }

TEST(LossSpikeTest, AJumpOutOfTheLastLossesIsFoundAtItsStep) {
  std::vector<double> losses = Falling();
  losses[150] = 3.4;
  const std::vector<Report> reports = LossReports(losses);
  ASSERT_EQ(reports.size(), 1U);
  EXPECT_EQ(reports[0].step, 151U);
}

TEST(LossSpikeTest, AClimbOverFewStepsIsFound) {
  std::vector<double> losses = Falling();
  for (size_t i = 0; i < 10; ++i) losses[150 + i] = 2.3 + 0.25 * static_cast<double>(i + 1);
  EXPECT_EQ(LossReports(losses).size(), 1U);
}

TEST(LossSpikeTest, LossesThatAlwaysJumpAreNone) {
  std::vector<double> losses;
  for (int i = 0; i < 500; ++i) losses.push_back(i % 23 == 7 ? 3.6 : 2.2 + 0.1 * std::sin(i));
  EXPECT_TRUE(LossReports(losses).empty());
}

TEST(LossSpikeTest, WithoutHistoryOrVocabularyNothingIsCompared) {
  RunFacts facts = ThreeLayers();
  facts.vocabulary = 0;
  LossSpikeDetector detector(facts);
  for (uint64_t step = 1; step <= 32; ++step) {
    EXPECT_FALSE(detector.Step(GoodStep(step, step % 2 == 0 ? 20 : 1)));
  }
}

TEST(LossSpikeTest, WhatIsNotFiniteIsLeftToOthersAndForgotten) {
  std::vector<double> losses = Falling();
  losses[100] = kNotANumber;
  losses[101] = kInfinity;
  EXPECT_TRUE(LossReports(losses).empty());
}

TEST(LossSpikeTest, ALossThatNeverChangesIsNone) {
  EXPECT_TRUE(LossReports(std::vector<double>(300, 2.5)).empty());
}

TEST(NormSpikeTest, TenTimesTheMedianIsFoundAndNotLess) {
  std::vector<double> norms(100, 1.0);
  norms[50] = 50;  // not yet
  norms[70] = 9.9;
  norms[80] = 10.1;
  const std::vector<Report> reports = NormReports(norms);
  ASSERT_EQ(reports.size(), 1U);
  EXPECT_EQ(reports[0].step, 81U);
  EXPECT_EQ(reports[0].value, 10.1);
  EXPECT_EQ(reports[0].kind, ReportKind::kNormSpike);
}

TEST(NormSpikeTest, TheFirstStepsAreComparedWithNothing) {
  EXPECT_TRUE(NormReports({0.01, 5, 0.01, 8, 0.02}).empty());
}

TEST(NormSpikeTest, NormsOfZeroAndSkippedStepsAreNone) {
  EXPECT_TRUE(NormReports(std::vector<double>(80, 0.0)).empty());
  NormSpikeDetector detector;
  for (uint64_t step = 1; step <= 64; ++step) EXPECT_FALSE(detector.Step(GoodStep(step)));
  EXPECT_FALSE(detector.Step(OverflowIn(65, 1)));
}

}  // namespace
}  // namespace penstock::train
