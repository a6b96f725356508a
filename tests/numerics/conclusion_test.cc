#include "numerics/conclusion.h"

#include <gtest/gtest.h>

#include "numerics/thresholds.h"
#include "tests/numerics/support.h"

namespace penstock::train {
namespace {

/// Steps 1 to `count`, in which nothing is wrong.
std::vector<ReplayedStep> GoodSteps(uint64_t count, double loss = 2.3) {
  ReplayedSteps record;
  record.Begin(ThreeLayers());
  for (uint64_t step = 1; step <= count; ++step) {
    record.Add(GoodStep(step, loss + 0.01 * static_cast<double>(step % 3)));
    record.Add(GoodUpdate(step));
  }
  return record.steps();
}

ReplayEvidence Healthy(uint64_t count = 30, DType dtype = DType::kFloat16) {
  return {.dtype = dtype, .vocabulary = 256, .steps = GoodSteps(count)};
}

ReplayedStep Broken(uint64_t step) {
  return {.step = step,
          .loss = kNotANumber,
          .grad_norm = kInfinity,
          .skipped = true,
          .first = NonFinitePlace{.tensor = "h.1.mlp.c_proj", .layer = 1, .rows = {7}}};
}

bool HasLine(const Conclusion& conclusion, const std::string& part) {
  return std::ranges::any_of(conclusion.evidence, [&](const std::string& line) {
    return line.find(part) != std::string::npos;
  });
}

TEST(ConclusionTest, OfHealthyStepsNothingIsFound) {
  const Conclusion conclusion = Conclude(Healthy());
  EXPECT_EQ(conclusion.cause, Cause::kNothing);
  EXPECT_EQ(conclusion.text, "nothing found");
  EXPECT_TRUE(conclusion.advice.empty());
  EXPECT_TRUE(HasLine(conclusion, "the largest update before it is 0.05 times its weights"));
  EXPECT_FALSE(IsSuspicious(Healthy()));
  EXPECT_EQ(Conclude({}).cause, Cause::kNothing);
}

TEST(ConclusionTest, WhatIsFiniteInFp32AloneIsTheRangeOfFp16) {
  ReplayEvidence evidence = Healthy();
  evidence.steps[20] = Broken(21);
  EXPECT_TRUE(IsSuspicious(evidence));
  evidence.in_fp32 = GoodSteps(30);
  const Conclusion conclusion = Conclude(evidence);
  EXPECT_EQ(conclusion.cause, Cause::kFp16Range);
  EXPECT_TRUE(HasLine(conclusion,
                      "h.1.mlp.c_proj is the first that is not finite, in forward "
                      "(layer 1, row 7)"));
  EXPECT_NE(conclusion.advice.find("bf16"), std::string::npos);
  evidence.in_fp32->back().loss = kNotANumber;
  EXPECT_EQ(Conclude(evidence).cause, Cause::kData);
  evidence.in_fp32 = GoodSteps(30, 2700);
  EXPECT_EQ(Conclude(evidence).cause, Cause::kWeights) << "a loss that no weights need to have";
}

TEST(ConclusionTest, AStreakIsTheRangeOnlyIfTheStepsEndWithIt) {
  ReplayEvidence evidence = Healthy();
  evidence.in_fp32 = GoodSteps(30);
  for (size_t i = 20; i < 26; ++i) {
    evidence.steps[i].skipped = true;
    evidence.steps[i].grad_norm = kInfinity;
  }
  EXPECT_EQ(FirstFailure(evidence), nullptr) << "the loss scale found its value";
  EXPECT_EQ(Conclude(evidence).cause, Cause::kNothing);
  evidence.steps.resize(26);
  ASSERT_NE(FirstFailure(evidence), nullptr);
  EXPECT_EQ(FirstFailure(evidence)->step, 21U);
  EXPECT_EQ(Conclude(evidence).cause, Cause::kFp16Range);
  evidence.steps.resize(25);
  EXPECT_EQ(FirstFailure(evidence), nullptr) << "five may mend themselves";
  evidence.stopped = "the loss scale is at its minimum";
  EXPECT_EQ(Conclude(evidence).cause, Cause::kFp16Range);
}

TEST(ConclusionTest, AnUpdateThatDestroysWeightsIsTheCauseOfAllThatFollows) {
  for (const double largest : {3e30, kInfinity}) {
    ReplayEvidence evidence = Healthy(30, DType::kBFloat16);
    evidence.steps[4].update->broken = "wte.weight";
    evidence.steps[4].update->largest_weight = largest;
    EXPECT_EQ(Conclude(evidence).text, "the weights, since the update of step 5");
    evidence.steps[5] = Broken(6);
    const Conclusion conclusion = Conclude(evidence);
    EXPECT_EQ(conclusion.cause, Cause::kWeights);
    EXPECT_EQ(conclusion.text, "the weights, since the update of step 5");
    EXPECT_NE(conclusion.advice.find("a commit of step 4 or earlier"), std::string::npos);
  }
}

TEST(ConclusionTest, AFailureSoonAfterAnUpdateThatIsTooLargeIsTheWeights) {
  ReplayEvidence evidence = Healthy();
  evidence.in_fp32 = GoodSteps(30);
  evidence.steps[4].update->too_large = 1;
  evidence.steps[10] = Broken(11);
  EXPECT_EQ(Conclude(evidence).text, "the weights, since the update of step 5");
  std::swap(evidence.steps[10], evidence.steps[25]);
  evidence.steps[25].step = 26;
  evidence.steps[10] = GoodSteps(11)[10];
  EXPECT_EQ(Conclude(evidence).cause, Cause::kFp16Range) << "too long ago";
}

TEST(ConclusionTest, WhatIsWrongWithTheCommitComesBeforeWhatFollowsFromIt) {
  ReplayEvidence evidence = Healthy();
  evidence.from = 40;
  evidence.commit_faults = {"a", "b", "c", "d"};
  evidence.steps[0] = Broken(41);
  const Conclusion conclusion = Conclude(evidence);
  EXPECT_EQ(conclusion.text, "the weights, which the commit of step 40 has already");
  EXPECT_TRUE(HasLine(conclusion, "and 1 more tensors"));
  EXPECT_TRUE(HasLine(conclusion, "step 41: the loss is nan"));
}

TEST(ConclusionTest, LossesThatWereNeverBelowUniformAreTheWeights) {
  ReplayEvidence evidence{.vocabulary = 256, .steps = GoodSteps(6, 30)};
  EXPECT_EQ(Conclude(evidence).cause, Cause::kWeights);
  EXPECT_TRUE(HasLine(Conclude(evidence), "above ln(vocabulary) + 1"));
  evidence.steps[0].loss = 5.5;
  EXPECT_EQ(Conclude(evidence).cause, Cause::kNothing);
}

TEST(ConclusionTest, ASpikeAmongSmallUpdatesIsTheData) {
  ReplayEvidence evidence = Healthy();
  evidence.reports.push_back(
      {.step = 21, .kind = ReportKind::kLossSpike, .rows = {3, 9}, .message = "step 21: jump"});
  const Conclusion conclusion = Conclude(evidence);
  EXPECT_EQ(conclusion.cause, Cause::kData);
  EXPECT_EQ(conclusion.text, "the data of step 21: rows 3, 9");
  EXPECT_TRUE(HasLine(conclusion, "step 21: jump"));
  EXPECT_NE(conclusion.advice.find("--skip-steps 21:21"), std::string::npos);
  evidence.steps[10].update->too_large = 2;
  EXPECT_EQ(Conclude(evidence).cause, Cause::kLearningRate);
}

TEST(ConclusionTest, ALossThatStandsOutOfThoseAroundItIsASpike) {
  ReplayEvidence evidence = Healthy();
  evidence.steps[15].loss = 2.9;
  evidence.steps[15].rows = {7};
  EXPECT_EQ(Conclude(evidence).text, "the data of step 16: row 7");
  // Twice as high from there on is no outlier, and the last of few steps is compared with nothing.
  for (size_t i = 15; i < 30; ++i) evidence.steps[i].loss = 4.6;
  EXPECT_EQ(Conclude(evidence).cause, Cause::kNothing);
  ReplayEvidence few = Healthy(kNeighbours);
  few.steps.back().loss = 2.9;
  EXPECT_EQ(Conclude(few).cause, Cause::kNothing);
  few.before = GoodSteps(kNeighbours);
  EXPECT_EQ(Conclude(few).cause, Cause::kData) << "the rows before the commit are known";
}

TEST(ConclusionTest, UpdatesThatAreTooLargeInSeveralStepsAreTheLearningRate) {
  ReplayEvidence evidence = Healthy();
  evidence.steps[2].update->too_large = 3;
  EXPECT_EQ(Conclude(evidence).cause, Cause::kNothing);
  evidence.steps[3].update->too_large = 1;
  const Conclusion conclusion = Conclude(evidence);
  EXPECT_EQ(conclusion.cause, Cause::kLearningRate);
  EXPECT_EQ(conclusion.text,
            "the learning rate: the updates of 2 steps, from step 3 on, are too large for the "
            "weights");
}

TEST(ConclusionTest, RowsAloneAreJudgedWithTheUpdatesOfFp32) {
  ReplayEvidence evidence = Healthy();
  evidence.in_fp32 = evidence.steps;
  for (ReplayedStep& step : evidence.steps) step.update.reset();
  evidence.steps[9] = Broken(10);
  evidence.steps[9].first.reset();
  EXPECT_EQ(Conclude(evidence).cause, Cause::kFp16Range);
  EXPECT_TRUE(HasLine(Conclude(evidence), "step 10: the loss is nan"));
  (*evidence.in_fp32)[7].update->broken = "wte.weight";
  EXPECT_EQ(Conclude(evidence).text, "the weights, since the update of step 8");
}

TEST(ReplayedStepsTest, OfAllTensorsTheWorstAreKept) {
  ReplayedSteps record;
  record.Begin(ThreeLayers(DType::kBFloat16));
  record.Add(GoodStep(1));
  record.Add(BrokenForward(2));
  UpdateNumbers update = GoodUpdate(1);
  update.weights[1].update_rms = 0.03;
  update.weights[3] = {.largest = 2e6, .rms = 1, .rms_before = 0.02, .update_rms = 1};
  record.Add(update);
  record.Add(GoodUpdate(7));
  record.Add(Report{.step = 2, .message = "two"});
  ASSERT_EQ(record.steps().size(), 2U);
  const ReplayedUpdate& kept = *record.steps()[0].update;
  EXPECT_EQ(kept.largest_of, "h.1.mlp.c_fc.weight");
  EXPECT_DOUBLE_EQ(kept.largest, 50);
  EXPECT_EQ(kept.too_large, 2U);
  EXPECT_EQ(kept.broken, "h.1.mlp.c_fc.weight");
  EXPECT_EQ(record.steps()[1].first->tensor, "h.1.mlp.c_proj");
  record.CutAfter(1);
  EXPECT_EQ(record.steps().size(), 1U);
  EXPECT_TRUE(record.reports().empty());
}

}  // namespace
}  // namespace penstock::train
