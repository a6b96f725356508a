#include "numerics/headroom.h"

#include <gtest/gtest.h>

#include "numerics/thresholds.h"
#include "tests/numerics/support.h"

namespace penstock::train {
namespace {

/// The hot model: layer 1's MLP gives 1.07e7, which stays in the residual stream.
StepNumbers HotStep(uint64_t step) {
  StepNumbers numbers = GoodStep(step);
  numbers.layers[1].mlp = 1.07e7;
  numbers.layers[1].residual = numbers.layers[2].residual = 1.07e7;
  return numbers;
}

TEST(HeadroomTest, BitsAreDoublingsLeft) {
  EXPECT_EQ(HeadroomBits(65504), 0);
  EXPECT_DOUBLE_EQ(HeadroomBits(8188), 3);
  EXPECT_LT(HeadroomBits(1e6), 0);
  EXPECT_EQ(HeadroomBits(0), kInfinity);
  EXPECT_TRUE(std::isnan(HeadroomBits(kInfinity)));
  EXPECT_TRUE(std::isnan(HeadroomBits(kNotANumber)));
}

TEST(HeadroomTest, AHotLayerInBf16IsAnInfoOnceNamingItsLayer) {
  const RunFacts facts = ThreeLayers(DType::kBFloat16);
  HeadroomDetector detector(facts);
  const std::optional<Report> report = detector.Step(HotStep(1));
  ASSERT_TRUE(report);
  EXPECT_EQ(report->severity, Severity::kInfo);
  EXPECT_EQ(report->tensor, "h.1.mlp.c_proj");
  EXPECT_EQ(report->layer, 1U);
  EXPECT_TRUE(Says(*report, "would not fit fp16")) << report->message;
  EXPECT_TRUE(Says(*report, "7.4 bits beyond")) << report->message;
  for (uint64_t step = 2; step < 500; ++step) {
    EXPECT_FALSE(detector.Step(step % 200 == 0 ? HotStep(step) : GoodStep(step)));
  }
}

TEST(HeadroomTest, InFp16LessThanThreeBitsAreReportedAndExactlyThreeAreNot) {
  const RunFacts facts = ThreeLayers();
  HeadroomDetector detector(facts);
  StepNumbers numbers = GoodStep(1);
  numbers.layers[2].attention = 8188;
  EXPECT_FALSE(detector.Step(numbers));
  numbers.step = 2;
  numbers.layers[2].attention = 8192;
  const std::optional<Report> report = detector.Step(numbers);
  ASSERT_TRUE(report);
  EXPECT_EQ(report->severity, Severity::kWarning);
  EXPECT_EQ(report->tensor, "h.2.attn.c_proj");
  EXPECT_NEAR(*report->value, 3, 0.01);
}

TEST(HeadroomTest, WhatStaysIsSaidOnceAndWhatComesBackAgain) {
  const RunFacts facts = ThreeLayers();
  HeadroomDetector detector(facts);
  StepNumbers hot = GoodStep(1);
  hot.layers[0].mlp = 20000;
  EXPECT_TRUE(detector.Step(hot));
  for (hot.step = 2; hot.step <= 150; ++hot.step) EXPECT_FALSE(detector.Step(hot));
  for (uint64_t step = 151; step <= 260; ++step) EXPECT_FALSE(detector.Step(GoodStep(step)));
  hot.step = 261;
  EXPECT_TRUE(detector.Step(hot));
}

/// The step after which `magnitude(step)` of layer 1's residual stream is reported; 0: never.
template <typename Magnitude>
uint64_t FirstReport(uint64_t steps, Magnitude magnitude) {
  const RunFacts facts = ThreeLayers();
  HeadroomDetector detector(facts);
  for (uint64_t step = 1; step <= steps; ++step) {
    StepNumbers numbers = GoodStep(step);
    numbers.layers[1].residual = magnitude(static_cast<double>(step));
    if (detector.Step(numbers)) return step;
  }
  return 0;
}

TEST(HeadroomTest, ARiseBelowSixBitsIsReportedBeforeThreeAreLeft) {
  // A bit in a hundred steps, from 7 bits of headroom on.
  const uint64_t step =
      FirstReport(300, [](double step) { return kMaxFloat16 / 128 * std::exp2(step / 100); });
  EXPECT_EQ(step, 101U);
}

TEST(HeadroomTest, WhatIsHighOrRisesFarFromTheEndOrSwingsIsNone) {
  EXPECT_EQ(FirstReport(400, [](double) { return 4000.0; }), 0U);
  EXPECT_EQ(FirstReport(400, [](double step) { return std::exp2(step / 100); }), 0U);
  EXPECT_EQ(FirstReport(400, [](double step) { return 3000 + 1000 * std::sin(step / 7); }), 0U);
  EXPECT_EQ(FirstReport(400, [](double step) { return 4000 + step / 10; }), 0U) << "too slow";
}

TEST(HeadroomTest, ValuesThatAreNotFiniteOrUnknownAreLeftToOthers) {
  const RunFacts facts = ThreeLayers();
  HeadroomDetector detector(facts);
  EXPECT_FALSE(detector.Step(BrokenForward(1)));
  StepNumbers unknown = GoodStep(2);
  unknown.layers[0] = {};
  unknown.layers[1].mlp = 0;
  EXPECT_FALSE(detector.Step(unknown));
  unknown.layers.clear();
  EXPECT_FALSE(detector.Step(unknown));
}

TEST(HeadroomTest, Fp32IsNotJudged) {
  const RunFacts facts = ThreeLayers(DType::kFloat32);
  HeadroomDetector detector(facts);
  EXPECT_FALSE(detector.Step(HotStep(1)));
}

}  // namespace
}  // namespace penstock::train
