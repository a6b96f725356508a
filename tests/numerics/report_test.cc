#include "numerics/report.h"

#include <gtest/gtest.h>

#include "numerics/advice.h"
#include "numerics/history.h"
#include "numerics/quiet.h"
#include "numerics/text.h"
#include "tests/numerics/support.h"

namespace penstock::train {
namespace {

TEST(ReportTest, TheFieldsOfALineAreTheContracts) {
  const Report report{.step = 3,
                      .kind = ReportKind::kNonFinite,
                      .tensor = "h.1.mlp.c_proj",
                      .layer = 1,
                      .pass = Pass::kForward,
                      .micro_batch = 0,
                      .rows = {4, 5},
                      .value = kInfinity,
                      .message = "step 3: \"x\""};
  EXPECT_EQ(ToJson(report),
            R"({"step":3,"kind":"nonfinite","tensor":"h.1.mlp.c_proj","layer":1,"pass":"forward",)"
            R"("micro_batch":0,"rows":[4,5],"value":null,"message":"step 3: \"x\""})");
  EXPECT_EQ(ToJson({.step = 1, .kind = ReportKind::kOverflows, .value = 3, .message = "m"}),
            R"({"step":1,"kind":"overflows","tensor":null,"layer":null,"pass":null,)"
            R"("micro_batch":null,"rows":null,"value":3.0,"message":"m"})");
}

TEST(ReportTest, AReadLineIsTheWrittenOne) {
  for (int kind = 0; kind <= static_cast<int>(ReportKind::kOverflows); ++kind) {
    const Report report{.step = 3,
                        .kind = static_cast<ReportKind>(kind),
                        .tensor = "t",
                        .layer = 1,
                        .pass = Pass::kUpdate,
                        .micro_batch = 2,
                        .rows = {7},
                        .value = 0.1,
                        .message = "m"};
    const std::optional<Report> read = ParseReport(ToJson(report));
    ASSERT_TRUE(read);
    EXPECT_EQ(ToJson(*read), ToJson(report));
  }
}

TEST(ReportTest, WhatIsNoReportIsNotRead) {
  for (const char* line :
       {"", "{", "[]", "{}", R"({"step":0,"kind":"streak","message":"m"})",
        R"({"step":1,"kind":"other","message":"m"})", R"({"step":1,"kind":"streak"})",
        R"({"step":-1,"kind":"streak","message":"m"})", R"({"step":1,"kind":7,"message":"m"})"}) {
    EXPECT_FALSE(ParseReport(line)) << line;
  }
  const auto odd =
      ParseReport(R"({"step":1,"kind":"streak","message":"m","layer":1e9,"rows":"x"})");
  ASSERT_TRUE(odd);
  EXPECT_FALSE(odd->layer);
}

TEST(ReportTest, AdviceFollowsTheTable) {
  const auto forward = [](Situation situation) {
    return Advice(ReportKind::kNonFinite, Pass::kForward, situation);
  };
  EXPECT_NE(forward({.dtype = DType::kFloat16}).find("bf16"), std::string::npos);
  EXPECT_NE(forward({.dtype = DType::kFloat16, .broken_by = 7}).find("update of step 7"),
            std::string::npos);
  const auto backward = [](bool ended) {
    return Advice(ReportKind::kNonFinite, Pass::kBackward,
                  {.dtype = DType::kFloat16, .dynamic_loss_scale = true, .ended = ended});
  };
  EXPECT_NE(backward(false).find("normal"), std::string::npos);
  EXPECT_NE(backward(true).find("bf16"), std::string::npos);
}

TEST(ReportTest, NumbersAreReadable) {
  EXPECT_EQ(NumberText(1.07e7), "1.07e+07");
  EXPECT_EQ(NumberText(-kNotANumber), "nan");
  EXPECT_EQ(NumberText(kInfinity), "infinite");
  EXPECT_EQ(ScaleText(65536), "2^16");
  EXPECT_EQ(ScaleText(1), "1");
  EXPECT_EQ(ScaleText(1000), "1000");
  EXPECT_EQ(ScaleText(0.5), "0.5");
  EXPECT_EQ(InAboutText(0.2), "in about 1 s");
  EXPECT_EQ(InAboutText(89), "in about 89 s");
  EXPECT_EQ(InAboutText(1050), "in about 18 min");
  EXPECT_EQ(InAboutText(7200), "in about 2.0 h");
  EXPECT_EQ(PlaceText(1, 0, {4}), "layer 1, micro-batch 0, row 4");
  EXPECT_EQ(PlaceText({}, {}, {1, 2, 3, 4, 5, 6, 7, 8, 9}), "rows 1, 2, 3, 4, 5, 6, 7, 8, …");
  EXPECT_EQ(PlaceText({}, {}, {}), "");
}

TEST(HistoryTest, MediansAreOfTheLastValuesAlone) {
  History history(4);
  for (const double value : {100, 1, 2, 3, 10}) history.Add(value);
  EXPECT_EQ(history.Median(), 2.5);
  EXPECT_EQ(history.MedianDeviation(), 1);  // 1.5 0.5 0.5 7.5
  EXPECT_EQ(history.LargestBut(1), 3);
  EXPECT_EQ(history.LargestBut(4), 10);
  EXPECT_EQ(history.PartMedian(0, 2), 1.5);
  EXPECT_EQ(history.PartMedian(1, 2), 6.5);
}

TEST(QuietTest, AContinuingStateIsReportedOnce) {
  Quiet quiet;
  EXPECT_TRUE(quiet.Say(1));
  EXPECT_FALSE(quiet.Say(2));
  EXPECT_FALSE(quiet.Say(102));
  EXPECT_TRUE(quiet.Say(203));
}

}  // namespace
}  // namespace penstock::train
