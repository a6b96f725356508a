#include "train/trainer/planned_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace penstock::train {
namespace {

using testing::HasSubstr;

/// Both moved `bytes` a step and took a second of it.
PlannedAndMeasured Alike(double bytes) {
  const PlanFigures figures{.device_peak_bytes = 100,
                            .host_peak_bytes = 100,
                            .nvme_read_bytes_per_step = bytes,
                            .nvme_write_bytes_per_step = bytes,
                            .step_s = 1.0};
  return {.planned = figures, .measured = figures};
}

TEST(PlanNoticeTest, WhatPartsFromThePlanIsNamed) {
  PlannedAndMeasured figures = Alike(1000);
  EXPECT_EQ(PlanNotice(figures, 100, 0), "");
  figures.measured.nvme_write_bytes_per_step = 940;
  EXPECT_THAT(PlanNotice(figures, 100, 0), HasSubstr("bytes written a step: planned 1000"));
  EXPECT_EQ(PlanNotice(figures, 9, 0), "") << "too few steps to tell";
}

TEST(PlanNoticeTest, StepsThatWereSkippedMayTakeLessByTheirShareAndNoMore) {
  PlannedAndMeasured figures = Alike(1000);
  figures.measured.nvme_write_bytes_per_step = 900;  // one of ten steps wrote nothing
  figures.measured.nvme_read_bytes_per_step = 960;
  figures.measured.step_s = 0.75;
  EXPECT_EQ(PlanNotice(figures, 10, 1), "");
  EXPECT_NE(PlanNotice(figures, 10, 0), "");
  EXPECT_NE(PlanNotice(figures, 100, 1), "");
}

TEST(PlanNoticeTest, ASkippedStepExcusesNothingThatIsAboveThePlan) {
  PlannedAndMeasured figures = Alike(1000);
  figures.measured.nvme_read_bytes_per_step = 1060;
  EXPECT_THAT(PlanNotice(figures, 10, 5), HasSubstr("bytes read a step"));
}

}  // namespace
}  // namespace penstock::train
