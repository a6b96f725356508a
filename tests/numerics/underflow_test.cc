#include "numerics/underflow.h"

#include <gtest/gtest.h>

#include "tests/numerics/support.h"

namespace penstock::train {
namespace {

StepNumbers WithZeros(size_t tensor, std::optional<double> zeros, std::optional<double> before) {
  StepNumbers numbers = GoodStep(5);
  numbers.loss_scale = 1;
  numbers.gradients[tensor].zeros = zeros;
  numbers.gradients[tensor].zeros_before = before;
  return numbers;
}

TEST(UnderflowTest, AGradientThatIsMostlyLostIsNamedOnce) {
  RunFacts facts = ThreeLayers();
  facts.dynamic_loss_scale = false;
  UnderflowDetector detector(facts);
  StepNumbers numbers = WithZeros(3, 0.8, 0.1);
  numbers.gradients[5].zeros = 0.6;
  const std::optional<Report> report = detector.Step(numbers);
  ASSERT_TRUE(report);
  EXPECT_EQ(report->kind, ReportKind::kUnderflow);
  EXPECT_EQ(report->tensor, "h.1.mlp.c_fc.weight");
  EXPECT_NEAR(*report->value, 0.7 / 0.9, 1e-12);
  EXPECT_TRUE(Says(*report, "78 %")) << report->message;
  EXPECT_TRUE(Says(*report, "(2 of 8 tensors")) << report->message;
  EXPECT_TRUE(Says(*report, "raise fp16.loss_scale")) << report->message;
  numbers.step = 6;
  EXPECT_FALSE(detector.Step(numbers));
}

TEST(UnderflowTest, WhatWasZeroBeforeRoundingIsNotLost) {
  const RunFacts facts = ThreeLayers();
  UnderflowDetector detector(facts);
  EXPECT_FALSE(detector.Step(WithZeros(0, 0.97, 0.96))) << "a token that is not in the step";
  EXPECT_FALSE(detector.Step(WithZeros(0, 0.97, {}))) << "an embedding, and nothing is known";
  EXPECT_FALSE(detector.Step(WithZeros(3, 1, 1))) << "a gradient of zeros";
  EXPECT_FALSE(detector.Step(WithZeros(3, 0.5, 0))) << "half is not more than half";
  EXPECT_FALSE(detector.Step(WithZeros(3, {}, {})));
}

TEST(UnderflowTest, OtherDtypesAndSkippedStepsAreNotJudged) {
  const RunFacts bf16 = ThreeLayers(DType::kBFloat16);
  UnderflowDetector other(bf16);
  EXPECT_FALSE(other.Step(WithZeros(3, 0.9, 0)));
  const RunFacts fp16 = ThreeLayers();
  UnderflowDetector detector(fp16);
  StepNumbers skipped = WithZeros(3, 0.9, 0);
  skipped.skipped = true;
  EXPECT_FALSE(detector.Step(skipped));
}

}  // namespace
}  // namespace penstock::train
