#include "train/launch/rank_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace penstock::train {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(RankEnvironment, SaysWhichRankItIsAndWhereAllMeet) {
  EXPECT_THAT(RankVariables({.rank = 5, .host = 1, .local_rank = 1, .local_size = 3}, 8,
                            {.address = "node1", .port = 29500}),
              ElementsAre("RANK=5", "WORLD_SIZE=8", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=3",
                          "MASTER_ADDR=node1", "MASTER_PORT=29500"));
}

TEST(RankEnvironment, TheTokenIsAVariableOfItsOwn) {
  EXPECT_EQ(TokenVariable({.address = "node1", .port = 29500, .token = "0a"}),
            "PENSTOCK_JOB_TOKEN=0a");
}

TEST(RankEnvironment, HoldsNothingOfAnotherLauncher) {
  const std::vector<std::string> others = {"RANK=1",
                                           "WORLD_SIZE=2",
                                           "LOCAL_RANK=0",
                                           "LOCAL_WORLD_SIZE=2",
                                           "MASTER_ADDR=x",
                                           "MASTER_PORT=1",
                                           "PENSTOCK_JOB_TOKEN=of another job",
                                           "OMPI_COMM_WORLD_SIZE=2",
                                           "PMIX_RANK=0",
                                           "SLURM_PROCID=0",
                                           "SLURM_STEP_NUM_TASKS=2",
                                           "TORCHELASTIC_USE_AGENT_STORE=True"};
  EXPECT_THAT(WithoutLaunchers(others), IsEmpty());
}

TEST(RankEnvironment, KeepsAllElseInItsOrder) {
  const std::vector<std::string> rest = {
      "PATH=/bin", "RANKS=3",   "MY_RANK=1",         "EMPTY=",         "odd",
      "A=RANK=1",  "LANG=\xff", "OMP_NUM_THREADS=2", "NCCL_DEBUG=INFO"};
  std::vector<std::string> all = rest;
  all.insert(all.begin() + 3, "RANK=1");
  EXPECT_EQ(WithoutLaunchers(all), rest);
}

TEST(RankEnvironment, OtherHostsGetNcclsVariables) {
  const std::vector<std::string> all = {"NCCL_SOCKET_IFNAME=eth0", "PATH=/bin", "NCCL_X;rm=1",
                                        "XNCCL_=1", "NCCL_DEBUG=a b"};
  EXPECT_THAT(VariablesForAllHosts(all), ElementsAre("NCCL_SOCKET_IFNAME=eth0", "NCCL_DEBUG=a b"));
}

}  // namespace
}  // namespace penstock::train
