// What is decided before a training begins: its steps.
#include "train/trainer/trainer_job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace penstock::train {
namespace {

using ::testing::HasSubstr;

TEST(ChooseThreads, ARankThatIsPlannedHasItsPartOfTheCores) {
  config::Config alone, one_of_many;
  ChooseThreads(device::Kind::kCpu, {}, &alone);
  ChooseThreads(device::Kind::kCpu, {.sharing = 100000, .bound = false}, &one_of_many);
  EXPECT_GE(alone.compute_threads, 1);
  EXPECT_EQ(one_of_many.compute_threads, 1) << "more ranks than cores have one each";
}

TEST(EpochSteps, AreWholeStepsOnly) {
  EXPECT_EQ(*EpochSteps(10, BatchRampup(3)), 3U);
  EXPECT_EQ(*EpochSteps(3, BatchRampup(3)), 1U);
  // 2, 2, 4, 6, 8.
  EXPECT_EQ(*EpochSteps(22, BatchRampup(8, BatchGrowth{2, 2, 12})), 5U);
  const Result<uint64_t> none = EpochSteps(2, BatchRampup(3));
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(none.error().message, HasSubstr("2 rows"));
}

}  // namespace
}  // namespace penstock::train
