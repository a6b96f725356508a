#include "numerics/non_finite.h"

#include <gtest/gtest.h>

#include "tests/numerics/support.h"

namespace penstock::train {
namespace {

TEST(NonFiniteTest, AHotLayerIsNamedInStep1AndEndsTheRunInStep2) {
  const RunFacts facts = ThreeLayers();
  NonFiniteDetector detector(facts);
  StepNumbers numbers = BrokenForward(1);
  numbers.first = FirstNonFinite{Pass::kForward, "h.1.mlp.c_proj", 1, 0, {4, 5}};
  const std::optional<Report> first = detector.Step(numbers, {});
  ASSERT_TRUE(first);
  EXPECT_EQ(first->kind, ReportKind::kNonFinite);
  EXPECT_EQ(first->severity, Severity::kWarning);
  EXPECT_EQ(first->tensor, "h.1.mlp.c_proj");
  EXPECT_EQ(first->layer, 1U);
  EXPECT_EQ(first->pass, Pass::kForward);
  EXPECT_EQ(first->micro_batch, 0U);
  EXPECT_EQ(first->rows, (std::vector<uint64_t>{4, 5}));
  EXPECT_TRUE(Says(*first, "in forward (layer 1, micro-batch 0, rows 4, 5)")) << first->message;
  EXPECT_TRUE(Says(*first, "bf16")) << first->message;
  EXPECT_FALSE(Says(*first, "initial_scale_power")) << first->message;
  const std::optional<Report> second = detector.Step(BrokenForward(2), {});
  ASSERT_TRUE(second);
  EXPECT_EQ(second->severity, Severity::kStop);
  EXPECT_TRUE(Says(*second, "2 forwards in a row were not finite, and the run stops"));
  EXPECT_TRUE(Says(*second, "bf16")) << second->message;
}

TEST(NonFiniteTest, AForwardThatFailsInAStreakOfOverflowsIsNotCalledOne) {
  const RunFacts facts = ThreeLayers();
  NonFiniteDetector detector(facts);
  const FirstNonFinite overflow{Pass::kBackward, "h.2.mlp.c_fc.weight", 2, 0, {}};
  StepNumbers numbers = OverflowIn(1, 5);
  numbers.first = overflow;
  numbers.steps_to_stop = 15;
  for (; numbers.step <= 6; ++numbers.step) detector.Step(numbers, {});
  for (uint64_t step = 7; step <= 8; ++step) {
    StepNumbers broken = BrokenForward(step);
    broken.first = overflow;  // of a step before
    const std::optional<Report> report = detector.Step(broken, {});
    ASSERT_TRUE(report);
    EXPECT_EQ(report->pass, Pass::kForward);
    EXPECT_EQ(report->tensor, "h.1.mlp.c_proj");
    EXPECT_FALSE(Says(*report, "normal")) << report->message;
  }
}

TEST(NonFiniteTest, WithoutASecondLookTheFirstLayerWithSuchAnOutputIsNamed) {
  const RunFacts facts = ThreeLayers();
  const NonFinitePlace place = FindNonFinite(facts, BrokenForward(1));
  EXPECT_EQ(place.tensor, "h.1.mlp.c_proj");
  EXPECT_EQ(place.layer, 1U);
  EXPECT_EQ(place.pass, Pass::kForward);
  StepNumbers attention = BrokenForward(1);
  attention.layers[0].residual = kNotANumber;
  EXPECT_EQ(FindNonFinite(facts, attention).tensor, "h.0");
  StepNumbers head = BrokenForward(1);
  head.layers.clear();
  EXPECT_FALSE(FindNonFinite(facts, head).tensor);
}

TEST(NonFiniteTest, AScaleThatIsTooHighIsNormalAndSaidOnce) {
  const RunFacts facts = ThreeLayers();
  NonFiniteDetector detector(facts);
  StepNumbers numbers = OverflowIn(1, 5);
  numbers.gradients[2].nonfinite = 1;  // backward comes here later
  numbers.loss_scale = 16777216;
  numbers.steps_to_stop = 15;
  for (; numbers.step < 6; ++numbers.step) {
    EXPECT_FALSE(detector.Step(numbers, {})) << "this is how a scale finds its value";
  }
  const std::optional<Report> report = detector.Step(numbers, {});
  ASSERT_TRUE(report);
  EXPECT_EQ(report->severity, Severity::kInfo);
  EXPECT_EQ(report->pass, Pass::kBackward);
  EXPECT_EQ(report->tensor, "h.2.mlp.c_fc.weight");
  EXPECT_EQ(report->value, 17);
  EXPECT_TRUE(Says(*report, "forward and weights are finite, so the loss scale 2^24 is too high"))
      << report->message;
  EXPECT_TRUE(Says(*report, "this is normal")) << report->message;
  for (uint64_t step = 7; step <= 9; ++step) EXPECT_FALSE(detector.Step(OverflowIn(step, 5), {}));
  StepNumbers good = GoodStep(10);
  good.loss_scale = numbers.loss_scale;
  EXPECT_FALSE(detector.Step(good, {}));
  for (numbers.step = 11; numbers.step < 16; ++numbers.step) {
    EXPECT_FALSE(detector.Step(numbers, {}));
  }
  EXPECT_TRUE(detector.Step(numbers, {})) << "a new streak at a scale that had held";
}

TEST(NonFiniteTest, AStreakThatIsToldOfIsNotCalledNormal) {
  const RunFacts facts = ThreeLayers();
  NonFiniteDetector detector(facts);
  for (uint64_t step = 1; step <= 9; ++step) {
    StepNumbers numbers = OverflowIn(step, 5);
    numbers.steps_to_stop = 13 - step;  // 10 after the third
    EXPECT_FALSE(detector.Step(numbers, {})) << step;
  }
}

TEST(NonFiniteTest, AnOverflowRightAfterADoublingIsNotReported) {
  const RunFacts facts = ThreeLayers();
  NonFiniteDetector detector(facts);
  EXPECT_FALSE(detector.Step(GoodStep(1), {}));
  StepNumbers doubled = OverflowIn(2, 5);
  doubled.loss_scale = 131072;
  EXPECT_FALSE(detector.Step(doubled, {}));
  EXPECT_FALSE(detector.Step(OverflowIn(3, 5), {}));
  EXPECT_TRUE(detector.Step(BrokenForward(4), {})) << "a forward is another matter";
}

TEST(NonFiniteTest, AStaticScaleIsToBeLowered) {
  RunFacts facts = ThreeLayers();
  facts.dynamic_loss_scale = false;
  NonFiniteDetector detector(facts);
  const std::optional<Report> report = detector.Step(OverflowIn(1, 5), {});
  ASSERT_TRUE(report);
  EXPECT_EQ(report->severity, Severity::kWarning);
  EXPECT_TRUE(Says(*report, "lower fp16.loss_scale")) << report->message;
}

TEST(NonFiniteTest, DestroyedWeightsAreSaidToBeSinceTheirUpdate) {
  const RunFacts facts = ThreeLayers(DType::kBFloat16);
  NonFiniteDetector detector(facts);
  EXPECT_FALSE(detector.Step(GoodStep(1), {}));
  const std::optional<Report> second = detector.Step(BrokenForward(2), 1);
  ASSERT_TRUE(second);
  EXPECT_TRUE(Says(*second, "since the update of step 1: go back to a commit before"))
      << second->message;
  const std::optional<Report> third = detector.Step(BrokenForward(3), 1);
  ASSERT_TRUE(third);
  EXPECT_EQ(third->severity, Severity::kStop);
}

TEST(NonFiniteTest, InFp32AndBf16TheScaleIsNotBlamed) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const RunFacts facts = ThreeLayers(dtype);
    NonFiniteDetector backward(facts), forward(facts);
    const std::optional<Report> overflow = backward.Step(OverflowIn(1, 5), {});
    ASSERT_TRUE(overflow);
    EXPECT_FALSE(Says(*overflow, "scale")) << overflow->message;
    const std::optional<Report> broken = forward.Step(BrokenForward(1), {});
    ASSERT_TRUE(broken);
    EXPECT_FALSE(Says(*broken, "bf16")) << broken->message;
  }
}

TEST(NonFiniteTest, AFiniteForwardBetweenTwoThatAreNotLetsTheRunContinue) {
  const RunFacts facts = ThreeLayers();
  NonFiniteDetector detector(facts);
  for (uint64_t step = 1; step <= 20; step += 2) {
    const std::optional<Report> report = detector.Step(BrokenForward(step), {});
    ASSERT_TRUE(report);
    EXPECT_NE(report->severity, Severity::kStop);
    detector.Step(GoodStep(step + 1), {});
  }
}

TEST(NonFiniteTest, ARowOfMetricsSufficesToKnowThatSomethingIsNotFinite) {
  const RunFacts facts = ThreeLayers();
  NonFiniteDetector detector(facts);
  const StepNumbers row{.step = 1, .loss = kNotANumber, .forward_finite = false, .skipped = true};
  const std::optional<Report> report = detector.Step(row, {});
  ASSERT_TRUE(report);
  EXPECT_FALSE(report->tensor);
  EXPECT_TRUE(Says(*report, "the loss is nan, in forward;")) << report->message;
}

}  // namespace
}  // namespace penstock::train
