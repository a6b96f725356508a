// Which CPUs and how many threads, on machines that are described here.
#include "zero/plan/thread_plan.h"

#include <gmock/gmock.h>
#include <sched.h>

#include <algorithm>
#include <set>

namespace penstock::zero {
namespace {

using device::Kind;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSubsetOf;
using ::testing::SizeIs;

using Cpus = std::vector<int>;

constexpr char kGpu[] = "0000:3b:00.0";  ///< on node 0
const PathDevices kNear0 = {"/near", {"nvme0n1"}};
const PathDevices kNear1 = {"/far", {"nvme1n1"}};
const PathDevices kAnywhere = {"/virtual", {"vda"}};

/// `nodes` nodes of `cores` cores each, numbered through, and then, as Linux does, through again
/// for the second hardware threads. A drive on each node, and a GPU on the first.
Topology Machine(int nodes, int cores, int hardware_threads) {
  Topology machine;
  for (int node = 0; node < nodes; ++node) {
    machine.nodes.push_back(node);
    Cpus cpus;
    for (int i = node * cores; i < (node + 1) * cores; ++i) {
      machine.cores.push_back({.nodes = {node}});
      for (int thread = 0; thread < hardware_threads; ++thread) {
        machine.cores.back().cpus.push_back(i + thread * nodes * cores);
        cpus.push_back(machine.cores.back().cpus.back());
      }
    }
    machine.devices.push_back({"nvme" + std::to_string(node) + "n1", {node}, cpus});
    if (node == 0) machine.devices.push_back({kGpu, {node}, cpus});
  }
  return machine;
}

/// What is left of `machine` to a process that may use the CPUs in [first, end) only.
Topology Restrict(Topology machine, int first, int end) {
  const auto forbidden = [=](int cpu) { return cpu < first || cpu >= end; };
  for (Core& core : machine.cores) std::erase_if(core.cpus, forbidden);
  for (IoDevice& device : machine.devices) std::erase_if(device.cpus, forbidden);
  std::erase_if(machine.cores, [](const Core& core) { return core.cpus.empty(); });
  return machine;
}

Cpus CpusOf(const Topology& machine) {
  Cpus cpus;
  for (const Core& core : machine.cores)
    cpus.insert(cpus.end(), core.cpus.begin(), core.cpus.end());
  return cpus;
}

ThreadPlan Plan(const Topology& machine, Kind kind, const std::vector<PathDevices>& paths,
                ThreadCounts wanted = {}) {
  return PlanThreads(machine, kind, wanted,
                     PlaceNear(machine, paths, kind == Kind::kCuda ? kGpu : ""));
}

/// No threads have CPUs of their own.
void ExpectShared(const ThreadPlan& plan) {
  EXPECT_THAT(plan.compute, IsEmpty());
  EXPECT_THAT(plan.optimizer, IsEmpty());
  EXPECT_THAT(plan.io, Each(IsEmpty()));
  EXPECT_THAT(plan.notice, HasSubstr(" share "));
}

TEST(ThreadPlanTest, OneOrTwoCoresAreSharedByAllAndComputationHasAThreadOnEach) {
  for (const int cores : {1, 2}) {
    const ThreadPlan plan = Plan(Machine(1, cores, 1), Kind::kCpu, {kNear0});
    EXPECT_EQ(plan.counts.compute, cores);
    EXPECT_EQ(plan.counts.optimizer, 1);
    ExpectShared(plan);
  }
  EXPECT_EQ(Plan(Machine(1, 2, 1), Kind::kCpu, {kNear0}).notice,
            "threads: 2 compute, 1 optimizer and those of I/O share CPUs 0-1: they are fewer than "
            "16 cores, without a second hardware thread: computation needs them all");
}

TEST(ThreadPlanTest, SecondHardwareThreadsServeOptimizerAndIoSoThatNoCoreIdles) {
  const ThreadPlan plan = Plan(Machine(1, 8, 2), Kind::kCpu, {kNear0});
  EXPECT_EQ(plan.counts.compute, 8);
  EXPECT_EQ(plan.counts.optimizer, 2);
  EXPECT_THAT(plan.compute, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(plan.io, ElementsAre(ElementsAre(8)));
  EXPECT_THAT(plan.optimizer, ElementsAre(9, 10, 11, 12, 13, 14, 15));
  EXPECT_EQ(plan.notice, "threads: 8 compute on CPUs 0-7, 2 optimizer on CPUs 9-15, I/O on CPU 8");
}

TEST(ThreadPlanTest, OnOneCoreOptimizerAndIoShareItsSecondHardwareThread) {
  const ThreadPlan plan = Plan(Machine(1, 1, 2), Kind::kCpu, {kNear0});
  EXPECT_EQ(plan.counts.compute, 1);
  EXPECT_THAT(plan.compute, ElementsAre(0));
  EXPECT_THAT(plan.optimizer, ElementsAre(1));
  EXPECT_THAT(plan.io, ElementsAre(ElementsAre(1)));
}

TEST(ThreadPlanTest, WithoutSecondHardwareThreadsOneInSixteenCoresIsSetApart) {
  EXPECT_EQ(Plan(Machine(1, 15, 1), Kind::kCpu, {kNear0}).counts.compute, 15);
  const ThreadPlan plan = Plan(Machine(1, 40, 1), Kind::kCpu, {kNear0});
  EXPECT_EQ(plan.counts.compute, 38);
  EXPECT_EQ(plan.counts.optimizer, 2);
  EXPECT_THAT(plan.compute, SizeIs(38));
  EXPECT_THAT(plan.optimizer, ElementsAre(0, 1));
  EXPECT_THAT(plan.io, ElementsAre(ElementsAre(0, 1)));
}

TEST(ThreadPlanTest, OnAGpusHostTheOptimizerHasAllCoresButThoseOfIoAndOfTheFeeder) {
  const ThreadPlan plan = Plan(Machine(1, 8, 2), Kind::kCuda, {kNear0, kNear0});
  EXPECT_THAT(plan.compute, IsEmpty());
  EXPECT_THAT(plan.io, ElementsAre(ElementsAre(0, 8), ElementsAre(0, 8)));
  EXPECT_EQ(plan.counts.optimizer, 6);
  EXPECT_THAT(plan.optimizer, ElementsAre(1, 2, 3, 4, 5, 6, 9, 10, 11, 12, 13, 14));
  EXPECT_THAT(plan.notice, HasSubstr("; CPUs 7,15 left to the thread that feeds the GPU"));
}

TEST(ThreadPlanTest, TooFewCoresOnAGpusHostAreShared) {
  for (const int cores : {1, 2}) {
    const ThreadPlan plan = Plan(Machine(1, cores, 1), Kind::kCuda, {kNear0});
    EXPECT_EQ(plan.counts.optimizer, 1);
    ExpectShared(plan);
    EXPECT_THAT(plan.notice, HasSubstr("too few for one each for updates, I/O and the thread"));
  }
  EXPECT_THAT(Plan(Machine(1, 3, 1), Kind::kCuda, {kNear0}).optimizer, ElementsAre(1));
}

TEST(ThreadPlanTest, WithDriveAndGpuOnDifferentSocketsIoIsNearItsDriveAndUpdatesAreNearBoth) {
  const ThreadPlan plan = Plan(Machine(2, 4, 1), Kind::kCuda, {kNear1});
  EXPECT_THAT(plan.io, ElementsAre(ElementsAre(4)));
  EXPECT_THAT(plan.optimizer, ElementsAre(0, 1, 2, 3, 5, 6));
}

TEST(ThreadPlanTest, WithDriveAndGpuOnOneSocketUpdatesStayNearTheMemoryThere) {
  const ThreadPlan plan = Plan(Machine(2, 4, 1), Kind::kCuda, {kNear0});
  EXPECT_THAT(plan.io, ElementsAre(ElementsAre(0)));
  EXPECT_THAT(plan.optimizer, ElementsAre(1, 2));
  EXPECT_EQ(plan.counts.optimizer, 2);
}

TEST(ThreadPlanTest, OnTheCpuDeviceWithTwoSocketsOnlyComputationUsesTheFarOne) {
  const ThreadPlan plan = Plan(Machine(2, 4, 2), Kind::kCpu, {kNear1});
  EXPECT_EQ(plan.counts.compute, 8);
  EXPECT_THAT(plan.compute, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(plan.io, ElementsAre(ElementsAre(12)));
  EXPECT_THAT(plan.optimizer, ElementsAre(13, 14, 15));
}

TEST(ThreadPlanTest, ADriveThatIsNowhereInParticularDoesNotTakeTheCoreOfOneThatIs) {
  const ThreadPlan plan = Plan(Machine(2, 3, 2), Kind::kCpu, {kAnywhere, kNear0});
  EXPECT_THAT(plan.io, ElementsAre(ElementsAre(7), ElementsAre(6)));
  EXPECT_THAT(plan.optimizer, ElementsAre(8));
}

TEST(ThreadPlanTest, WhereCoresAreSharedIoThreadsStayNearTheirDrives) {
  const ThreadPlan plan = Plan(Machine(2, 2, 1), Kind::kCpu, {kNear1, kAnywhere});
  EXPECT_THAT(plan.io, ElementsAre(ElementsAre(2, 3), IsEmpty()));
}

TEST(ThreadPlanTest, WithLessTimeThanItsThreadsTakeAContainerHasFewerAndNoneHasItsOwnCpu) {
  for (const Kind kind : {Kind::kCpu, Kind::kCuda}) {
    Topology machine = Machine(1, 32, 2);
    machine.cpu_quota = 7.5;
    const ThreadPlan plan = PlanThreads(machine, kind, {}, {});
    EXPECT_EQ(plan.counts.compute, kind == Kind::kCpu ? 8 : 1);
    EXPECT_EQ(plan.counts.optimizer, kind == Kind::kCpu ? 2 : 7);
    EXPECT_THAT(plan.compute, IsEmpty());
    EXPECT_THAT(plan.optimizer, IsEmpty());
    EXPECT_THAT(plan.notice, HasSubstr("the time of 7.5 CPUs"));
    machine.cpu_quota = 0.5;
    EXPECT_EQ(PlanThreads(machine, kind, {}, {}).counts.compute, 1);
    EXPECT_EQ(PlanThreads(machine, kind, {}, {}).counts.optimizer, 1);
  }
}

TEST(ThreadPlanTest, AQuotaThatItsThreadsDoNotTakeChangesNothing) {
  for (const Kind kind : {Kind::kCpu, Kind::kCuda}) {
    Topology machine = Machine(1, 32, 2);
    const ThreadPlan without = PlanThreads(machine, kind, {}, {});
    for (const double quota : {40.0, 63.5, 64.0, 100.0}) {
      machine.cpu_quota = quota;
      EXPECT_EQ(PlanThreads(machine, kind, {}, {}).notice, without.notice) << quota;
    }
  }
}

TEST(ThreadPlanTest, AQuotaJustBelowTheCpusMeansNoMoreThreadsThanNone) {
  Topology machine = Machine(1, 64, 1);
  const ThreadCounts without = PlanThreads(machine, Kind::kCpu, {}, {}).counts;
  machine.cpu_quota = 62;
  const ThreadPlan plan = PlanThreads(machine, Kind::kCpu, {}, {});
  EXPECT_EQ(plan.counts.compute, without.compute);
  EXPECT_EQ(plan.counts.optimizer, without.optimizer);
  EXPECT_THAT(plan.compute, IsEmpty());
}

TEST(ThreadPlanTest, OnlyOpenCountsAreChosen) {
  const ThreadCounts wanted = {.compute = 5, .optimizer = 3};
  for (const Kind kind : {Kind::kCpu, Kind::kCuda}) {
    for (const Topology& machine : {Machine(1, 1, 1), Machine(1, 8, 2), Machine(2, 16, 1)}) {
      const ThreadPlan plan = Plan(machine, kind, {kNear0}, wanted);
      EXPECT_EQ(plan.counts.compute, 5);
      EXPECT_EQ(plan.counts.optimizer, 3);
    }
  }
}

TEST(ThreadPlanTest, MoreComputeThreadsThanComputationHasCoresShareWithAll) {
  const ThreadPlan on_siblings = Plan(Machine(1, 8, 2), Kind::kCpu, {kNear0}, {.compute = 9});
  ExpectShared(on_siblings);
  EXPECT_THAT(on_siblings.notice, HasSubstr("more than 8 compute threads leave nothing to others"));
  ExpectShared(Plan(Machine(1, 16, 1), Kind::kCpu, {kNear0}, {.compute = 16}));
}

/// Of every kind of machine, device and number of drives.
template <typename Check>
void ForEachPlan(Check check) {
  for (const int nodes : {1, 2, 4}) {
    for (const int cores : {1, 2, 3, 8, 16, 40}) {
      for (const int hardware_threads : {1, 2}) {
        const Topology whole = Machine(nodes, cores, hardware_threads);
        const auto cpus = static_cast<int>(CpusOf(whole).size());
        for (const auto& [first, end] : {std::pair(0, cpus), std::pair(0, (cpus + 1) / 2),
                                         std::pair(cpus / 2, cpus), std::pair(cpus - 1, cpus)}) {
          const Topology machine = Restrict(whole, first, end);
          for (const Kind kind : {Kind::kCpu, Kind::kCuda}) {
            for (const std::vector<PathDevices>& paths :
                 {std::vector<PathDevices>(), {kNear0}, {kNear1, kNear0, kAnywhere}}) {
              SCOPED_TRACE(testing::Message()
                           << nodes << " nodes, " << cores << " cores, " << hardware_threads
                           << " threads, CPUs " << first << " to " << end << ", "
                           << device::ToString(kind) << ", " << paths.size() << " paths");
              check(machine, kind, paths);
            }
          }
        }
      }
    }
  }
}

TEST(ThreadPlanTest, NoThreadRunsOutsideOfWhatTheProcessMayUseAndNoKindHasNone) {
  ForEachPlan([](const Topology& machine, Kind kind, const auto& paths) {
    const ThreadPlan plan = Plan(machine, kind, paths);
    EXPECT_GE(plan.counts.compute, 1);
    EXPECT_GE(plan.counts.optimizer, 1);
    EXPECT_THAT(plan.io, SizeIs(paths.size()));
    EXPECT_FALSE(plan.notice.empty());
    std::vector<Cpus> sets = plan.io;
    sets.insert(sets.end(), {plan.compute, plan.optimizer});
    for (const Cpus& set : sets) EXPECT_THAT(set, IsSubsetOf(CpusOf(machine)));
  });
}

TEST(ThreadPlanTest, WhatIsSetApartFromComputationIsNotPartOfItAndHoldsItsThreads) {
  ForEachPlan([](const Topology& machine, Kind kind, const auto& paths) {
    const ThreadPlan plan = Plan(machine, kind, paths);
    EXPECT_EQ(plan.optimizer.empty(), plan.notice.find(" share ") != std::string::npos);
    if (plan.optimizer.empty()) return;
    Cpus both = plan.compute;
    both.insert(both.end(), plan.optimizer.begin(), plan.optimizer.end());
    EXPECT_THAT(std::set<int>(both.begin(), both.end()), SizeIs(both.size()));
    if (kind == Kind::kCpu) {
      EXPECT_GE(plan.compute.size(), static_cast<size_t>(plan.counts.compute));
      return;
    }
    for (const Cpus& io : plan.io) {
      EXPECT_EQ(std::ranges::find_first_of(io, plan.optimizer), io.end());
    }
  });
}

TEST(ThreadPlanTest, CountsOfTheCpuDeviceDoNotDependOnDrives) {
  ForEachPlan([](const Topology& machine, Kind, const auto& paths) {
    const ThreadPlan plan = Plan(machine, Kind::kCpu, paths);
    config::Config config;
    ChooseThreads(machine, Kind::kCpu, &config);
    EXPECT_EQ(config.compute_threads, plan.counts.compute);
    EXPECT_EQ(config.optimizer_threads, plan.counts.optimizer);
  });
}

TEST(ChooseThreadsTest, OnAGpusHostTheOptimizersCountStaysOpen) {
  config::Config config;
  ChooseThreads(Machine(1, 8, 2), Kind::kCuda, &config);
  EXPECT_EQ(config.compute_threads, 1);
  EXPECT_EQ(config.optimizer_threads, 0);
}

TEST(ThreadPlanTest, OnAGpusHostAllCoresUpdateButOneAndTheIoThreads) {
  for (const Topology& machine :
       {Machine(1, 16, 1), Machine(2, 16, 1), Machine(1, 8, 2), Machine(2, 32, 1)}) {
    const auto cores = static_cast<int>(machine.cores.size());
    // Of a GPU whose place is not known, all memory is near.
    EXPECT_EQ(PlanThreads(machine, Kind::kCuda, {}, {}).counts.optimizer, cores - 1);
    const NumaPlacement placement = PlaceNear(machine, {kAnywhere}, "");
    EXPECT_EQ(PlanThreads(machine, Kind::kCuda, {}, placement).counts.optimizer, cores - 2);
  }
}

TEST(AssumeThreadsTest, APlannedRunHasTheOptimizersThreadsOfARunOnThatMachine) {
  for (const Kind kind : {Kind::kCpu, Kind::kCuda}) {
    for (const bool nvme : {false, true}) {
      config::Config config;
      config.optimizer_home = nvme ? Tier::kNvme : Tier::kHost;
      config.nvme_paths = {"/near"};
      const Topology machine = Machine(1, 16, 1);
      AssumeThreads(machine, kind, &config);
      const auto paths = nvme ? std::vector{kNear0} : std::vector<PathDevices>{};
      EXPECT_EQ(config.optimizer_threads, Plan(machine, kind, paths).counts.optimizer);
    }
  }
  config::Config chosen;
  chosen.optimizer_threads = 3;
  AssumeThreads(Machine(1, 16, 1), Kind::kCuda, &chosen);
  EXPECT_EQ(chosen.optimizer_threads, 3);
}

TEST(ChooseThreadsTest, CoresWhoseCpusAreNotKnownCount) {
  config::Config config;
  ChooseThreads({.cores = std::vector<Core>(4)}, Kind::kCpu, &config);
  EXPECT_EQ(config.compute_threads, 4);
  EXPECT_EQ(config.optimizer_threads, 1);
}

TEST(LeaveOutRefusedTest, WhatTheKernelRefusesRunsAnywhereAndTheNoticeSaysSo) {
  cpu_set_t set;
  CPU_ZERO(&set);
  ASSERT_EQ(::sched_getaffinity(0, sizeof(set), &set), 0);
  int own = 0;
  while (!CPU_ISSET(own, &set)) ++own;
  constexpr int kMissing = CPU_SETSIZE - 1;
  ThreadPlan plan{.compute = {own}, .optimizer = {kMissing}, .io = {{own}, {kMissing}}};
  LeaveOutRefused(plan);
  EXPECT_THAT(plan.compute, ElementsAre(own));
  EXPECT_THAT(plan.optimizer, IsEmpty());
  EXPECT_THAT(plan.io, ElementsAre(ElementsAre(own), IsEmpty()));
  EXPECT_THAT(plan.notice, HasSubstr("run anywhere: binding a thread to the CPUs 1023: Invalid"));
}

}  // namespace
}  // namespace penstock::zero
