#include "tools/run_numerics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "run/run_folder.h"
#include "tests/temp_folder.h"
#include "tools/numerics_plot.h"

namespace penstock::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class RunNumericsTest : public testing::Test {
 protected:
  RunNumericsTest() {
    RunInfo info;
    info.program = "test";
    info.run_uuid = "00000000-0000-0000-0000-000000000001";
    info.place = temp_.Path("");
    info.state = StateFiles::OfOneRank({temp_.Path("state")}, info.run_uuid);
    info.training.model_json = "{}";
    info.training.data_path = "/data";
    info.training.data_order = "shuffle";
    info.training.device = "cpu";
    info.training.sequence_length = 4;
    PENSTOCK_CHECK(WriteRunInfo(temp_.Open(), info).ok());
  }
  void WriteFiles() const {
    temp_.Write(
        "metrics.jsonl",
        "{\"step\":1,\"loss\":5.5,\"grad_norm\":2,\"loss_scale\":4096,\"skipped\":false}\n"
        "{\"step\":2,\"loss\":null,\"grad_norm\":null,\"loss_scale\":4096,\"skipped\":true}\n"
        "garbage\n"
        "{\"step\":3,\"loss\":5.4,\"grad_norm\":1,\"loss_scale\":2048,\"skipped\":false}\n");
    temp_.Write("numerics.jsonl", ToJson({.step = 2,
                                          .kind = ReportKind::kNonFinite,
                                          .tensor = "h.1.mlp.c_proj",
                                          .pass = Pass::kForward,
                                          .message = "step 2: it is hot; use bf16"}) +
                                      "\n");
    temp_.Write("headroom.jsonl",
                "{\"step\":1,\"attention\":[1,2],\"mlp\":[1,16376],\"residual\":[1,null]}\n");
  }

  TempFolder temp_;
};

TEST_F(RunNumericsTest, TheTableHasEachReportAndTheLeastHeadroom) {
  WriteFiles();
  const RunNumerics numerics = ReadRunNumerics(temp_.Path()).value();
  EXPECT_EQ(numerics.rows.size(), 3U);
  const std::string table = ToTable(numerics);
  EXPECT_THAT(table, AllOf(HasSubstr("3 steps (1 skipped), 1 report\n"),
                           HasSubstr("min headroom to fp16: 2.0 bits, mlp of layer 1 at step 1"),
                           HasSubstr("nonfinite"), HasSubstr("h.1.mlp.c_proj"),
                           HasSubstr("  it is hot; use bf16\n"), Not(HasSubstr("ended"))));
}

TEST_F(RunNumericsTest, ARunThatStoppedSaysWhyAndWhatToDo) {
  temp_.Write(
      "overflow.json",
      R"({"step":9,"stop":"it stopped","first_cause":{"message":"the cause"},"advice":"do"})");
  EXPECT_THAT(ToTable(ReadRunNumerics(temp_.Path()).value()),
              AllOf(HasSubstr("ended at step 9: it stopped\n"), HasSubstr("first cause: the cause"),
                    HasSubstr("advice: do\n")));
}

TEST_F(RunNumericsTest, ARunWithoutAnyOfTheFilesHasNothingToSay) {
  const RunNumerics numerics = ReadRunNumerics(temp_.Path()).value();
  EXPECT_EQ(ToTable(numerics), temp_.Path() + ": 0 steps (0 skipped), 0 reports\n");
  EXPECT_THAT(PlotSvg(numerics),
              AllOf(HasSubstr("the run has no rows"), HasSubstr("nothing is known of its layers")));
}

TEST_F(RunNumericsTest, WhatIsNoRunIsRefused) {
  TempFolder other;
  EXPECT_TRUE(FailsWith(ReadRunNumerics(other.Path()), ErrorCode::kNotFound, {other.Path()}));
  temp_.Write("overflow.json", "{");
  EXPECT_TRUE(FailsWith(ReadRunNumerics(temp_.Path()), ErrorCode::kCorruption, {"overflow.json"}));
}

TEST_F(RunNumericsTest, ThePlotHasFourPanelsAndEveryMark) {
  WriteFiles();
  const std::string svg = PlotSvg(ReadRunNumerics(temp_.Path()).value());
  for (const char* text : {">Loss<", "Norm of the gradient", ">Loss scale<", "Headroom by layer",
                           "skipped step (1)", "report (1)", ">layer 0<", ">layer 1<",
                           "fp16 overflows", "step 2: it is hot; use bf16", ">step<"}) {
    EXPECT_THAT(svg, HasSubstr(text));
  }
  EXPECT_THAT(svg, Not(HasSubstr("no rows")));
}

}  // namespace
}  // namespace penstock::train
