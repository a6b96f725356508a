#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "comm/environment.h"
#include "tests/comm/job_support.h"
#include "tests/temp_folder.h"

namespace penstock::comm {
namespace {

Variables Plain(const std::string& rank, const std::string& size) {
  return {{"RANK", rank}, {"WORLD_SIZE", size}, {"MASTER_ADDR", "head"}, {"MASTER_PORT", "29500"}};
}

Variables Slurm(const std::string& rank, const std::string& size) {
  return {{"SLURM_PROCID", rank},     {"SLURM_STEP_NUM_TASKS", size},
          {"SLURM_LOCALID", "0"},     {"SLURM_STEP_NODELIST", "node[07-09]"},
          {"SLURM_JOB_ID", "123456"}, {"SLURM_STEP_ID", "3"}};
}

Variables With(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}

Launch Read(const Variables& variables) { return ReadLaunch(EnvironmentOf(variables)).value(); }

testing::AssertionResult IsRefused(const Variables& variables,
                                   const std::vector<std::string>& parts) {
  return FailsWith(ReadLaunch(EnvironmentOf(variables)), ErrorCode::kInvalidArgument, parts);
}

TEST(EnvironmentTest, WithoutALauncherThereIsOneRank) {
  const Launch launch = Read({{"HOME", "/root"}, {"MASTER_ADDR", "head"}, {"SLURM_NTASKS", "8"}});
  EXPECT_EQ(launch.size, 1U);
  EXPECT_EQ(launch.rank, 0U);
  EXPECT_FALSE(launch.by_pmix);
  EXPECT_TRUE(launch.endpoints.empty());
}

TEST(EnvironmentTest, RankAndWorldSizeSayARankAndWhereRankZeroIs) {
  const Launch launch =
      Read(With(Plain("2", "4"), {{"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "2"}}));
  EXPECT_EQ(launch.size, 4U);
  EXPECT_EQ(launch.rank, 2U);
  EXPECT_EQ(launch.local_size, 2U);
  EXPECT_EQ(launch.local_rank, 0U);
  EXPECT_EQ(launch.endpoints, (std::vector<Endpoint>{{"head", 29500}}));
  EXPECT_EQ(launch.run, "");
  EXPECT_EQ(Read(Plain("2", "4")).local_size, std::nullopt);
}

TEST(EnvironmentTest, AWorldOfOneNeedsNothingElse) {
  EXPECT_EQ(Read({{"WORLD_SIZE", "1"}}).size, 1U);
  EXPECT_EQ(Read({{"WORLD_SIZE", "1"}, {"RANK", "0"}}).size, 1U);
}

TEST(EnvironmentTest, ATokenIsTakenUnderEveryLauncherAndNotBySingleRanks) {
  const Variables given = {{"PENSTOCK_JOB_TOKEN", "0123456789abcdef"}};
  EXPECT_EQ(Read(Plain("1", "4")).token, "");
  EXPECT_EQ(Read(With(Plain("1", "4"), {{"PENSTOCK_JOB_TOKEN", ""}})).token, "");
  EXPECT_EQ(Read(With(Plain("1", "4"), given)).token, "0123456789abcdef");
  EXPECT_EQ(Read(With(Slurm("1", "4"), given)).token, "0123456789abcdef");
  EXPECT_EQ(Read(With(given, {{"PENSTOCK_JOB_TOKEN", "short"}})).token, "") << "one rank alone";
}

TEST(EnvironmentTest, ATokenThatIsShortLongOrNoTextIsRefusedAndNotShown) {
  for (const std::string& token : {std::string("open sesame"), std::string(300, 'a'),
                                   std::string("with a space and more"), std::string(20, '\x1b')}) {
    const Result<Launch> launch =
        ReadLaunch(EnvironmentOf(With(Plain("1", "4"), {{"PENSTOCK_JOB_TOKEN", token}})));
    EXPECT_TRUE(FailsWith(launch, ErrorCode::kInvalidArgument,
                          {"PENSTOCK_JOB_TOKEN has", std::to_string(token.size()), "16 to 256"}));
    EXPECT_EQ(launch.error().message.find(token), std::string::npos);
  }
}

TEST(EnvironmentTest, BehindTorchrunsAgentSixteenPortsAreTried) {
  const Launch launch = Read(With(Plain("1", "2"), {{"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                                    {"TORCHELASTIC_RUN_ID", "none"},
                                                    {"TORCHELASTIC_RESTART_COUNT", "2"}}));
  ASSERT_EQ(launch.endpoints.size(), 16U);
  EXPECT_EQ(launch.endpoints.front(), (Endpoint{"head", 29501}));
  EXPECT_EQ(launch.endpoints.back(), (Endpoint{"head", 29516}));
  EXPECT_EQ(launch.run, "torchrun none restart 2");
  const Variables at_the_end = {{"TORCHELASTIC_USE_AGENT_STORE", "True"}, {"MASTER_PORT", "65534"}};
  EXPECT_EQ(Read(With(Plain("1", "2"), at_the_end)).endpoints,
            (std::vector<Endpoint>{{"head", 65535}}));
  EXPECT_TRUE(IsRefused(
      With(Plain("1", "2"), {{"TORCHELASTIC_USE_AGENT_STORE", "True"}, {"MASTER_PORT", "65535"}}),
      {"--master-port"}));
  const Variables no_agent = {{"TORCHELASTIC_USE_AGENT_STORE", "False"}};
  EXPECT_EQ(Read(With(Plain("1", "2"), no_agent)).endpoints.size(), 1U);
}

TEST(EnvironmentTest, WhatIsNoNumberIsNamed) {
  for (const char* bad : {"", "x", "1x", " 1", "-1", "+1", "1.0", "0x1", "99999999999999999999"}) {
    EXPECT_TRUE(IsRefused(Plain(bad, "4"), {"RANK=", bad, "no number"})) << bad;
    EXPECT_TRUE(IsRefused(Plain("0", bad), {"WORLD_SIZE=", bad, "no number"})) << bad;
    const Variables port = {{"MASTER_PORT", bad}};
    EXPECT_TRUE(IsRefused(With(Plain("0", "2"), port), {"MASTER_PORT=", bad})) << bad;
    const Variables local = {{"LOCAL_RANK", bad}};
    EXPECT_TRUE(IsRefused(With(Plain("0", "2"), local), {"LOCAL_RANK=", bad})) << bad;
  }
  EXPECT_TRUE(IsRefused(Plain("0", "0"), {"WORLD_SIZE=0"}));
  EXPECT_TRUE(IsRefused(Plain("0", "65537"), {"WORLD_SIZE=65537", "65536"}));
  EXPECT_TRUE(IsRefused(With(Plain("0", "2"), {{"MASTER_PORT", "65536"}}), {"MASTER_PORT=65536"}));
  EXPECT_TRUE(IsRefused(With(Plain("0", "2"), {{"MASTER_PORT", "0"}}), {"MASTER_PORT=0"}));
  EXPECT_TRUE(IsRefused(Plain("a\nb", "2"), {"RANK=a b"}));
}

TEST(EnvironmentTest, WhatContradictsItselfIsRefused) {
  EXPECT_TRUE(IsRefused(Plain("4", "4"), {"RANK=4", "WORLD_SIZE=4", "count from 0"}));
  EXPECT_TRUE(IsRefused({{"RANK", "0"}}, {"RANK is set and WORLD_SIZE is not"}));
  EXPECT_TRUE(IsRefused({{"WORLD_SIZE", "2"}}, {"WORLD_SIZE is set and RANK is not"}));
  EXPECT_TRUE(IsRefused({{"WORLD_SIZE", "2"}, {"RANK", "0"}, {"MASTER_PORT", "1"}},
                        {"MASTER_ADDR is not"}));
  EXPECT_TRUE(IsRefused({{"WORLD_SIZE", "2"}, {"RANK", "0"}, {"MASTER_ADDR", "head"}},
                        {"MASTER_PORT is not"}));
  EXPECT_TRUE(
      IsRefused(With(Plain("0", "2"), {{"LOCAL_WORLD_SIZE", "3"}}), {"LOCAL_WORLD_SIZE=3"}));
  EXPECT_TRUE(IsRefused(With(Plain("0", "4"), {{"LOCAL_WORLD_SIZE", "2"}, {"LOCAL_RANK", "2"}}),
                        {"LOCAL_RANK=2"}));
  EXPECT_TRUE(IsRefused({{"PMIX_RANK", "1"}}, {"PMIX_NAMESPACE"}));
}

TEST(EnvironmentTest, RankAndWorldSizeThatAreNotThoseOfMpirunOrSrunAreRefused) {
  const Variables mpirun = {{"PMIX_RANK", "1"},
                            {"PMIX_NAMESPACE", "n"},
                            {"OMPI_COMM_WORLD_SIZE", "2"},
                            {"OMPI_COMM_WORLD_RANK", "1"}};
  EXPECT_TRUE(IsRefused(With(Plain("1", "4"), mpirun), {"WORLD_SIZE=4", "OMPI_COMM_WORLD_SIZE=2"}));
  EXPECT_TRUE(IsRefused(With(Plain("0", "2"), mpirun), {"RANK=0", "OMPI_COMM_WORLD_RANK=1"}));
  EXPECT_TRUE(IsRefused(With({{"WORLD_SIZE", "1"}}, mpirun), {"WORLD_SIZE=1"}));
  EXPECT_EQ(Read(With(Plain("1", "2"), mpirun)).endpoints.size(), 1U);
  EXPECT_TRUE(IsRefused(With(Plain("0", "4"), Slurm("0", "2")), {"SLURM_STEP_NUM_TASKS=2"}));
  // One agent of torchrun on each of two nodes, and a shell that srun started.
  EXPECT_EQ(Read(With(With(Plain("5", "8"), Slurm("1", "2")), {{"TORCHELASTIC_RUN_ID", "r"}})).size,
            8U);
  EXPECT_EQ(Read(With(Plain("3", "4"), Slurm("0", "1"))).size, 4U);
  // mpirun's processes inherit what srun said to its daemons.
  EXPECT_EQ(Read(With(With(Plain("1", "2"), mpirun), Slurm("0", "4"))).size, 2U);
}

TEST(EnvironmentTest, PmixSaysTheRankAndKnowsTheRest) {
  const Launch launch = Read({{"PMIX_RANK", "3"}, {"PMIX_NAMESPACE", "17"}});
  EXPECT_TRUE(launch.by_pmix);
  EXPECT_EQ(launch.rank, 3U);
  EXPECT_EQ(launch.run, "PMIx 17");
  EXPECT_TRUE(Read(With(Slurm("1", "4"), {{"PMIX_RANK", "1"}, {"PMIX_NAMESPACE", "n"}})).by_pmix);
}

TEST(EnvironmentTest, MpirunWithOneRankMakesNoConnection) {
  const Launch launch =
      Read({{"PMIX_RANK", "0"}, {"PMIX_NAMESPACE", "17"}, {"OMPI_COMM_WORLD_SIZE", "1"}});
  EXPECT_FALSE(launch.by_pmix);
  EXPECT_EQ(launch.size, 1U);
}

TEST(EnvironmentTest, SlurmSaysAllButThePort) {
  const Launch launch = Read(Slurm("5", "6"));
  EXPECT_EQ(launch.size, 6U);
  EXPECT_EQ(launch.rank, 5U);
  EXPECT_EQ(launch.local_rank, 0U);
  EXPECT_EQ(launch.endpoints, (std::vector<Endpoint>{{"node07", 20000 + 123456 % 20000}}));
  EXPECT_EQ(launch.run, "Slurm 123456.3");
  const Variables master = {{"MASTER_ADDR", "head"}, {"MASTER_PORT", "1234"}};
  EXPECT_EQ(Read(With(Slurm("5", "6"), master)).endpoints, (std::vector<Endpoint>{{"head", 1234}}));
  EXPECT_EQ(Read(Slurm("0", "1")).endpoints.size(), 0U);
  EXPECT_TRUE(IsRefused(Slurm("6", "6"), {"SLURM_PROCID=6"}));
  EXPECT_TRUE(IsRefused({{"SLURM_STEP_NUM_TASKS", "2"}}, {"SLURM_PROCID is not"}));
  EXPECT_TRUE(IsRefused(With(Slurm("0", "2"), {{"SLURM_STEP_NODELIST", "node[1-"}}),
                        {"SLURM_STEP_NODELIST=node[1-", "MASTER_ADDR"}));
}

TEST(EnvironmentTest, WhetherThereAreSeveralRanksIsKnownWithoutThem) {
  const auto several = [](const Variables& variables) {
    return Job::HasSeveralRanks(EnvironmentOf(variables)).value();
  };
  EXPECT_FALSE(several({}));
  EXPECT_FALSE(several({{"WORLD_SIZE", "1"}}));
  EXPECT_TRUE(several({{"WORLD_SIZE", "2"},
                       {"RANK", "0"},
                       {"MASTER_ADDR", "localhost"},
                       {"MASTER_PORT", "29500"}}));
  EXPECT_FALSE(
      several({{"PMIX_RANK", "0"}, {"PMIX_NAMESPACE", "1"}, {"OMPI_COMM_WORLD_SIZE", "1"}}));
  EXPECT_TRUE(
      several({{"PMIX_RANK", "0"}, {"PMIX_NAMESPACE", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}}));
  EXPECT_FALSE(Job::HasSeveralRanks(EnvironmentOf({{"WORLD_SIZE", "two"}})).ok());
}

TEST(EnvironmentTest, TheFirstHostOfAListIsFound) {
  const std::vector<std::pair<std::string, std::string>> lists = {
      {"a", "a"},
      {"a,b", "a"},
      {"node[01-03,07],x", "node01"},
      {"node[7]", "node7"},
      {"node[07,01]", "node07"},
      {"big-node-[10-12]", "big-node-10"},
      {"rack[1-2]node[3,5]-ib,z", "rack1node3-ib"}};
  for (const auto& [list, host] : lists) EXPECT_EQ(FirstHost(list).value(), host) << list;
  for (const char* bad : {"", ",a", "node[", "node[1", "node[1-2"}) {
    EXPECT_TRUE(FailsWith(FirstHost(bad), ErrorCode::kInvalidArgument, {"MASTER_ADDR"})) << bad;
  }
}

TEST(EnvironmentTest, OtherLaunchersAreRefusedWithWhatToUse) {
  for (const char* name :
       {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "FLUX_JOB_SIZE"}) {
    EXPECT_TRUE(IsRefused({{name, "4"}}, {name, "=4", "mpirun", "srun", "WORLD_SIZE"})) << name;
    EXPECT_EQ(Read({{name, "1"}}).size, 1U) << name;
    EXPECT_EQ(Read(With(Plain("1", "4"), {{name, "1"}})).size, 4U) << name;
  }
}

}  // namespace
}  // namespace penstock::comm
