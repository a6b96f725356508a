// What a plan chooses for a caller.
#include "front/plan.h"

#include <gmock/gmock.h>

#include "base/cpu_scope.h"
#include "base/topology.h"
#include "front/parallel_copy.h"
#include "tests/front/c_training.h"

namespace penstock::front {
namespace {

int OptimizerThreads(const json& section) {
  const TempFolder folder;
  json config = ConfigOf(kHomes[3], folder.Path());
  config["penstock"].update(section);
  const auto plan =
      MakePlan(config.dump(), ModelOf("bf16").dump(), json{{"folders", {folder.Path()}}}.dump());
  EXPECT_TRUE(plan.ok()) << plan.error().message;
  return plan.ok() ? plan->engine.config.optimizer_threads : -1;
}

TEST(PlanTest, AChosenNumberOfOptimizerThreadsIsKept) {
  EXPECT_EQ(OptimizerThreads({{"optimizer_threads", 3}}), 3);
}

TEST(PlanTest, UpdatesRunOnEachCoreThatTheyShareWithTheCallersThreads) {
  const auto topology = ReadTopology();
  ASSERT_TRUE(topology.ok()) << topology.error().message;
  const size_t cores = topology->cores.size();
  for (const Core& core : topology->cores) {
    if (core.cpus.size() == 1 && cores < 16 && !topology->cpu_quota) continue;
    GTEST_SKIP() << "updates have CPUs of their own on this machine, or a quota";
  }
  EXPECT_EQ(OptimizerThreads(json::object()), std::min(static_cast<int>(cores), kMaxMemoryThreads));
  std::vector<int> all;
  for (const Core& core : topology->cores) all.push_back(core.cpus.front());
  // A sanitizer has a thread of its own, which counts as the process does.
  ASSERT_TRUE(BindProcess({all.front()}).ok());
  EXPECT_EQ(OptimizerThreads(json::object()), 1);
  EXPECT_TRUE(BindProcess(all).ok());
}

}  // namespace
}  // namespace penstock::front
