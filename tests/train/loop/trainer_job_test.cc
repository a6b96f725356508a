// What is decided before a training begins: its steps, and that it is alone.
#include "train/loop/trainer_job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <utility>

namespace penstock::train {
namespace {

using ::testing::HasSubstr;

TEST(EpochSteps, AreWholeStepsOnly) {
  EXPECT_EQ(*EpochSteps(10, 3), 3U);
  EXPECT_EQ(*EpochSteps(3, 3), 1U);
  const Result<uint64_t> none = EpochSteps(2, 3);
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(none.error().message, HasSubstr("2 rows"));
}

Environment Variables(std::map<std::string, std::string> variables) {
  return [variables = std::move(variables)](const std::string& name) {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
}

TEST(CheckOneRank, AcceptsOneRankAndRefusesSeveral) {
  EXPECT_TRUE(CheckOneRank(Variables({})).ok());
  EXPECT_TRUE(CheckOneRank(Variables({{"WORLD_SIZE", "1"}, {"RANK", "0"}})).ok());
  EXPECT_TRUE(CheckOneRank(Variables({{"SLURM_NTASKS", "8"}})).ok());
  for (const auto& [size, rank] :
       std::map<std::string, std::string>{{"WORLD_SIZE", "RANK"},
                                          {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
                                          {"PMI_SIZE", "PMI_RANK"},
                                          {"MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"},
                                          {"FLUX_JOB_SIZE", "FLUX_TASK_RANK"},
                                          {"SLURM_NTASKS", "SLURM_PROCID"}}) {
    const Status status = CheckOneRank(Variables({{size, "2"}, {rank, "1"}}));
    ASSERT_FALSE(status.ok()) << size;
    EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(status.error().message, HasSubstr(size + "=2"));
  }
}

TEST(CheckOneRank, RefusesWhoeverIsNotTheFirstOfPmix) {
  EXPECT_TRUE(CheckOneRank(Variables({{"PMIX_RANK", "0"}})).ok());
  const Status status = CheckOneRank(Variables({{"PMIX_RANK", "1"}}));
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(status.error().message, HasSubstr("PMIX_RANK=1"));
}

}  // namespace
}  // namespace penstock::train
