#include "numerics/watch.h"

#include <gtest/gtest.h>

#include <memory>

#include <nlohmann/json.hpp>

#include "numerics/thresholds.h"
#include "tests/numerics/support.h"

namespace penstock::train {
namespace {

/// Loss and norm of a healthy run, with noise of a fixed pattern.
StepNumbers HealthyStep(uint64_t step) {
  const auto i = static_cast<double>(step);
  StepNumbers numbers = GoodStep(step, 2.3 + 3.2 * std::exp(-i / 60) + 0.1 * std::sin(i * 12.99));
  numbers.grad_norm = 0.8 + 2 * std::exp(-i / 20) + 0.3 * std::sin(i * 78.2);
  return numbers;
}

std::vector<ReportKind> KindsOf(const std::vector<Report>& reports) {
  std::vector<ReportKind> kinds;
  for (const Report& report : reports) kinds.push_back(report.kind);
  return kinds;
}

TEST(WatchTest, AHealthyRunGivesNoReport) {
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16, DType::kFloat32}) {
    NumericsWatch watch(ThreeLayers(dtype));
    for (uint64_t step = 1; step <= 500; ++step) {
      EXPECT_TRUE(watch.Step(HealthyStep(step)).empty()) << "step " << step;
      EXPECT_TRUE(watch.Updated(GoodUpdate(step)).empty()) << "step " << step;
    }
    EXPECT_FALSE(watch.FirstCause());
    EXPECT_FALSE(watch.Doubtful());
  }
}

TEST(WatchTest, DestroyedWeightsEndTheRunInStep3WithTheirUpdateAsItsCause) {
  NumericsWatch watch(ThreeLayers(DType::kBFloat16));
  EXPECT_TRUE(watch.Step(HealthyStep(1)).empty());
  UpdateNumbers update = GoodUpdate(1);
  for (WeightNumbers& weight : update.weights) weight = {3e30, 3e30, 0.02, 3e30};
  EXPECT_EQ(KindsOf(watch.Updated(update)), std::vector{ReportKind::kUpdate});
  const std::vector<Report> second = watch.Step(BrokenForward(2));
  ASSERT_EQ(KindsOf(second), std::vector{ReportKind::kNonFinite});
  EXPECT_TRUE(Says(second[0], "since the update of step 1")) << second[0].message;
  EXPECT_TRUE(watch.Doubtful());
  const std::vector<Report> third = watch.Step(BrokenForward(3));
  ASSERT_EQ(third.size(), 1U);
  EXPECT_EQ(third[0].severity, Severity::kStop);
  const std::optional<Report> cause = watch.FirstCause();
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->kind, ReportKind::kUpdate);
  EXPECT_EQ(cause->step, 1U);
}

TEST(WatchTest, WeightsThatWereNotCommittedAreTheCauseOfTheEnd) {
  NumericsWatch watch(ThreeLayers(DType::kBFloat16));
  watch.Step(GoodStep(1));
  const Report report = watch.Broken(1, "step 1: the last update has destroyed the weights");
  EXPECT_EQ(report.kind, ReportKind::kUpdate);
  EXPECT_EQ(report.severity, Severity::kStop);
  EXPECT_TRUE(watch.Doubtful());
  const std::optional<Report> cause = watch.FirstCause();
  ASSERT_TRUE(cause);
  EXPECT_EQ(ToJson(*cause), ToJson(report));
  EXPECT_NE(watch.BlackBoxJson(1, report.message).find("lower the learning rate"),
            std::string::npos);
}

TEST(WatchTest, ACauseIsNotLookedForFarBeforeTheTrouble) {
  NumericsWatch watch(ThreeLayers());
  StepNumbers hot = GoodStep(1);
  hot.layers[0].mlp = 20000;
  EXPECT_EQ(watch.Step(hot).size(), 1U);
  for (uint64_t step = 2; step <= 40; ++step) watch.Step(GoodStep(step));
  for (uint64_t step = 41; step <= 46; ++step) {
    StepNumbers overflow = OverflowIn(step, 3);
    overflow.steps_to_stop = 53 - step;
    watch.Step(overflow);
  }
  const std::optional<Report> cause = watch.FirstCause();
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->kind, ReportKind::kStreak);
  EXPECT_EQ(cause->step, 43U);
}

TEST(WatchTest, AfterAResumeTheRowsBringItUpToDate) {
  const RunFacts facts = ThreeLayers();
  NumericsWatch through(facts), resumed(facts);
  const auto step_of = [](uint64_t step) {
    StepNumbers numbers = step >= 299 && step <= 305 ? OverflowIn(step, 3) : HealthyStep(step);
    numbers.steps_to_stop = step >= 299 && step <= 305 ? 311 - step : 15;
    return numbers;
  };
  for (uint64_t step = 1; step <= 300; ++step) {
    const StepNumbers numbers = step_of(step);
    through.Step(numbers);
    StepNumbers row = numbers;
    row.gradients.clear();
    row.layers.clear();
    row.steps_to_stop.reset();
    if (step + resumed.RowsToReplay() > 300) resumed.Replay(row);
  }
  for (uint64_t step = 301; step <= 400; ++step) {
    StepNumbers numbers = step_of(step);
    if (step == 350) numbers.loss = 9;
    if (step == 360) numbers.grad_norm = 99;
    const std::vector<Report> expected = through.Step(numbers), found = resumed.Step(numbers);
    ASSERT_EQ(found.size(), expected.size()) << "step " << step;
    for (size_t i = 0; i < found.size(); ++i) EXPECT_EQ(ToJson(found[i]), ToJson(expected[i]));
    EXPECT_EQ(expected.empty(), step != 301 && step != 350 && step != 360) << "step " << step;
  }
}

/// A watch that goes on after some overflows in a row.
std::unique_ptr<NumericsWatch> ResumedAfterOverflows(uint64_t overflows, bool told) {
  auto watch = std::make_unique<NumericsWatch>(ThreeLayers());
  watch->Replay(GoodStep(1));
  for (uint64_t step = 2; step < 2 + overflows; ++step) watch->Replay(OverflowIn(step, 3));
  if (told) watch->Remember({.step = 1 + overflows, .kind = ReportKind::kStreak}, 1 + overflows);
  watch->Resumed();
  return watch;
}

TEST(WatchTest, AStreakThatWasNotToldOfBeforeAResumeIsToldOfAfterIt) {
  for (const bool told : {false, true}) {
    const auto watch = ResumedAfterOverflows(4, told);
    std::vector<ReportKind> kinds;
    for (uint64_t step = 6; step <= 12; ++step) {
      StepNumbers numbers = OverflowIn(step, 3);
      numbers.steps_to_stop = 18 - step;  // far from the end when the sixth in a row comes
      for (const Report& report : watch->Step(numbers)) kinds.push_back(report.kind);
    }
    if (told) {
      EXPECT_TRUE(kinds.empty());
    } else {
      EXPECT_EQ(kinds, (std::vector{ReportKind::kNonFinite, ReportKind::kStreak}));
    }
  }
}

TEST(WatchTest, ForwardsBeforeAResumeDoNotCountTowardsTheEnd) {
  NumericsWatch watch(ThreeLayers());
  watch.Replay(GoodStep(1));
  watch.Replay(BrokenForward(2));
  watch.Resumed();
  EXPECT_TRUE(watch.Step(BrokenForward(3)).empty()) << "the same was said before";
  const std::vector<Report> reports = watch.Step(BrokenForward(4));
  ASSERT_EQ(reports.size(), 1U);
  EXPECT_EQ(reports[0].severity, Severity::kStop);
  EXPECT_NE(reports[0].message.find("2 forwards in a row"), std::string::npos);
}

TEST(WatchTest, WhatWasReportedBeforeAResumeIsNotReportedAgain) {
  NumericsWatch watch(ThreeLayers(DType::kBFloat16));
  watch.Remember({.step = 1, .kind = ReportKind::kHeadroom}, 50);
  StepNumbers hot = GoodStep(51);
  hot.layers[0].mlp = 20000;
  EXPECT_TRUE(watch.Step(hot).empty());
}

TEST(BlackBoxTest, TheLastSixteenStepsOfEveryTensorAreKept) {
  const RunFacts facts = ThreeLayers();
  NumericsWatch watch(facts);
  for (uint64_t step = 1; step <= 30; ++step) {
    StepNumbers numbers = step > 25 ? OverflowIn(step, 3) : GoodStep(step);
    numbers.rows = {step, step + 1};
    if (step > 25) numbers.steps_to_stop = 36 - step;
    watch.Step(numbers);
    if (step <= 25) watch.Updated(GoodUpdate(step));
  }
  const auto box = nlohmann::json::parse(watch.BlackBoxJson(30, "scale at its minimum"));
  EXPECT_EQ(box["format"], 1);
  EXPECT_EQ(box["step"], 30);
  EXPECT_EQ(box["stop"], "scale at its minimum");
  EXPECT_EQ(box["first_cause"]["step"], 28);
  EXPECT_EQ(box["first_cause"]["kind"], "streak");
  EXPECT_NE(box["advice"].get<std::string>().find("bf16"), std::string::npos);
  EXPECT_EQ(box["dtype"], "fp16");
  EXPECT_EQ(box["tensors"].size(), 8U);
  EXPECT_EQ(box["tensors"][3]["name"], "h.1.mlp.c_fc.weight");
  EXPECT_EQ(box["tensors"][3]["layer"], 1);
  EXPECT_TRUE(box["tensors"][0]["layer"].is_null());
  EXPECT_EQ(box["layers"][2]["mlp"], "h.2.mlp.c_proj");
  ASSERT_EQ(box["steps"].size(), kBlackBoxSteps);
  const auto& applied = box["steps"][0];
  EXPECT_EQ(applied["step"], 15);
  EXPECT_EQ(applied["rows"], (std::vector<int>{15, 16}));
  EXPECT_EQ(applied["weight_rms"], std::vector<double>(8, 0.02));
  EXPECT_EQ(applied["update_rms"], std::vector<double>(8, 1e-3));
  EXPECT_EQ(applied["mlp_max"], std::vector<double>(3, 3));
  const auto& skipped = box["steps"][15];
  EXPECT_EQ(skipped["gradient_nonfinite"][3], 17);
  EXPECT_TRUE(skipped["gradient_max"][3].is_null());
  EXPECT_TRUE(skipped["weight_rms"].is_null());
  EXPECT_TRUE(skipped["skipped"].get<bool>());
}

TEST(HeadroomLogTest, ALineIsWrittenFirstAndAfterHalfABit) {
  HeadroomLog log;
  StepNumbers numbers = GoodStep(1);
  EXPECT_EQ(log.Step(numbers),
            R"({"step":1,"attention":[2.0,2.0,2.0],"mlp":[3.0,3.0,3.0],"residual":[5.0,5.0,5.0]})");
  numbers.step = 2;
  numbers.layers[1].mlp = 4.2;  // 0.485 bits
  EXPECT_FALSE(log.Step(numbers));
  numbers.layers[1].mlp = 4.3;
  EXPECT_TRUE(log.Step(numbers));
  EXPECT_FALSE(log.Step(numbers));
  numbers.layers[2].residual = kInfinity;
  numbers.layers[0].attention = {};
  const std::optional<std::string> line = log.Step(numbers);
  ASSERT_TRUE(line);
  const std::optional<HeadroomRow> row = ParseHeadroomRow(*line);
  ASSERT_TRUE(row);
  EXPECT_EQ(row->step, 2U);
  ASSERT_EQ(row->layers.size(), 3U);
  EXPECT_FALSE(row->layers[2].residual);
  EXPECT_FALSE(row->layers[0].attention);
  EXPECT_EQ(row->layers[1].mlp, 4.3);
  EXPECT_FALSE(log.Step(numbers)) << "still not finite";
  EXPECT_FALSE(HeadroomLog().Step({.step = 1})) << "nothing is known";
}

TEST(HeadroomLogTest, WhatIsNoLineIsNotRead) {
  for (const char* line : {"", "{}", R"({"step":1})", R"({"step":1,"attention":[],"mlp":[]})",
                           R"({"step":0,"attention":[],"mlp":[],"residual":[]})"}) {
    EXPECT_FALSE(ParseHeadroomRow(line)) << line;
  }
}

}  // namespace
}  // namespace penstock::train
