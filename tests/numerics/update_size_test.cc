#include "numerics/update_size.h"

#include <gtest/gtest.h>

#include "tests/numerics/support.h"

namespace penstock::train {
namespace {

TEST(UpdateSizeTest, ALearningRateThatIsFarTooLargeIsFoundInStep1) {
  const RunFacts facts = ThreeLayers(DType::kBFloat16);
  for (const double lr : {0.3, 3e30}) {
    UpdateSizeDetector detector(facts);
    UpdateNumbers numbers = GoodUpdate(1);
    for (WeightNumbers& weight : numbers.weights) weight.update_rms = lr;
    numbers.weights[3].rms_before = 0.015;
    const std::vector<Report> reports = detector.Updated(numbers);
    ASSERT_EQ(reports.size(), 1U);
    EXPECT_EQ(reports[0].step, 1U);
    EXPECT_EQ(reports[0].pass, Pass::kUpdate);
    EXPECT_EQ(reports[0].tensor, "h.1.mlp.c_fc.weight");
    EXPECT_TRUE(Says(reports[0], "(7 more of 8 tensors)")) << reports[0].message;
    numbers.step = 2;
    EXPECT_TRUE(detector.Updated(numbers).empty()) << "it was said";
  }
}

TEST(UpdateSizeTest, ABiasThatStartsAtZeroIsNone) {
  const RunFacts facts = ThreeLayers();
  UpdateSizeDetector detector(facts);
  UpdateNumbers numbers = GoodUpdate(1);
  for (const size_t bias : {2, 4, 6}) {
    numbers.weights[bias] = {.largest = 3e-3, .rms = 3e-3, .rms_before = 0, .update_rms = 3e-3};
  }
  EXPECT_TRUE(detector.Updated(numbers).empty());
}

TEST(UpdateSizeTest, AStartFromRandomWeightsWithoutWarmUpIsNone) {
  const RunFacts facts = ThreeLayers();
  UpdateSizeDetector detector(facts);
  double rms = 0.02;
  for (uint64_t step = 1; step <= 500; ++step) {
    UpdateNumbers numbers = GoodUpdate(step);
    const double update = step < 20 ? 3e-3 : 8e-4;
    for (WeightNumbers& weight : numbers.weights) {
      weight = {
          .largest = 5 * rms, .rms = rms + update / 4, .rms_before = rms, .update_rms = update};
    }
    rms += update / 4;
    EXPECT_TRUE(detector.Updated(numbers).empty()) << "step " << step;
  }
}

TEST(UpdateSizeTest, SettledMatricesMayNotMoveByATenthAndBiasesMay) {
  RunFacts facts = ThreeLayers();
  facts.warmup_steps = 50;
  for (const uint64_t step : {250, 251}) {
    UpdateSizeDetector detector(facts);
    UpdateNumbers numbers = GoodUpdate(step);
    numbers.weights[1].update_rms = 0.11 * 0.02;
    numbers.weights[2].update_rms = 0.4 * 0.02;
    const std::vector<Report> reports = detector.Updated(numbers);
    EXPECT_EQ(reports.size(), step == 250 ? 0U : 1U);
    for (const Report& report : reports) EXPECT_EQ(report.tensor, "h.0.mlp.c_fc.weight");
  }
}

TEST(UpdateSizeTest, WeightsThatDoubleWithinAHundredSettledStepsAreFound) {
  const RunFacts facts = ThreeLayers();
  UpdateSizeDetector detector(facts);
  std::vector<Report> reports;
  for (uint64_t step = 150; step <= 500; ++step) {
    UpdateNumbers numbers = GoodUpdate(step);
    if (step > 300) numbers.weights[5].rms = 0.02 * std::exp2(static_cast<double>(step - 300) / 80);
    for (Report& report : detector.Updated(numbers)) reports.push_back(report);
  }
  ASSERT_EQ(reports.size(), 1U);
  EXPECT_EQ(reports[0].step, 380U);
  EXPECT_EQ(reports[0].tensor, "h.2.mlp.c_fc.weight");
  EXPECT_TRUE(Says(reports[0], "2-fold")) << reports[0].message;
}

TEST(UpdateSizeTest, WeightsThatDoubleInAHundredAndTwentyAreNone) {
  const RunFacts facts = ThreeLayers();
  UpdateSizeDetector detector(facts);
  for (uint64_t step = 201; step <= 500; ++step) {
    UpdateNumbers numbers = GoodUpdate(step);
    numbers.weights[5].rms = 0.02 * std::exp2(static_cast<double>(step - 201) / 120);
    EXPECT_TRUE(detector.Updated(numbers).empty()) << "step " << step;
  }
}

TEST(UpdateSizeTest, AnUpdateThatIsNotANumberIsWithoutBound) {
  const RunFacts facts = ThreeLayers();
  UpdateSizeDetector detector(facts);
  UpdateNumbers numbers = GoodUpdate(7);
  numbers.weights[0] = {kNotANumber, kNotANumber, 0.02, kNotANumber};
  const std::vector<Report> reports = detector.Updated(numbers);
  ASSERT_EQ(reports.size(), 1U);
  EXPECT_EQ(reports[0].tensor, "wte.weight");
  EXPECT_TRUE(Says(reports[0], "infinite times")) << reports[0].message;
}

TEST(UpdateSizeTest, WhatWasSaidBeforeAResumeIsNotSaidAgain) {
  const RunFacts facts = ThreeLayers();
  UpdateSizeDetector detector(facts);
  detector.Remember(40);
  UpdateNumbers numbers = GoodUpdate(41);
  numbers.weights[1].update_rms = 1;
  EXPECT_TRUE(detector.Updated(numbers).empty());
}

}  // namespace
}  // namespace penstock::train
