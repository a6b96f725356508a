#include "train/plan/step_floors.h"

#include <gtest/gtest.h>

#include <optional>

namespace penstock::train {
namespace {

TEST(StepFloorsTest, TheLongestOfTheFloorsThatAreKnownBoundsTheStep) {
  StepFloors floors = {.compute = 1, .drive = 2, .update = 1.5, .copies = {}, .link = {}};
  EXPECT_EQ(LongestOf(floors).resource, StepResource::kDrive);
  EXPECT_EQ(LongestOf(floors).seconds, 2);
  floors.drive.reset();
  EXPECT_EQ(LongestOf(floors).resource, StepResource::kOptimizer);
  floors.link = 3;
  EXPECT_STREQ(ToString(LongestOf(floors).resource), "link");
  EXPECT_EQ(LongestOf({}).seconds, 0);
}

TEST(StepFloorsTest, ADriveNeedsNoTimeForNothingAndAnUnknownTimeIfItsSpeedIsNotKnown) {
  const sim::DriveSpeed drive = {.read_bytes_a_second = 2, .write_bytes_a_second = 1};
  EXPECT_EQ(DriveTime(4, 3, drive), 3);
  EXPECT_EQ(DriveTime(0, 0, std::nullopt), 0);
  EXPECT_EQ(DriveTime(1, 0, std::nullopt), std::nullopt);
}

}  // namespace
}  // namespace penstock::train
