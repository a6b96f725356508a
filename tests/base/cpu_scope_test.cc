#include "base/cpu_scope.h"

#include <gmock/gmock.h>

#include <thread>

namespace penstock {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<int> OwnCpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  EXPECT_EQ(::sched_getaffinity(0, sizeof(set), &set), 0);
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

TEST(CpuScopeTest, ThreadsStartedInItStayOnItsCpusAndTheirStarterDoesNot) {
  const std::vector<int> before = OwnCpus();
  const int last = before.back();
  std::vector<int> started;
  std::vector<int> started_by_that;
  std::thread thread;
  {
    const CpuScope scope({last});
    ASSERT_TRUE(scope.status().ok()) << scope.status().error().message;
    EXPECT_THAT(OwnCpus(), ElementsAre(last));
    thread = std::thread([&] {
      started = OwnCpus();
      std::thread([&] { started_by_that = OwnCpus(); }).join();
    });
  }
  EXPECT_EQ(OwnCpus(), before);
  thread.join();
  EXPECT_THAT(started, ElementsAre(last));
  EXPECT_THAT(started_by_that, ElementsAre(last));
}

TEST(CpuScopeTest, NoCpusChangeNothing) {
  const std::vector<int> before = OwnCpus();
  const CpuScope scope({});
  EXPECT_TRUE(scope.status().ok());
  EXPECT_EQ(OwnCpus(), before);
}

TEST(CpuScopeTest, WhatTheKernelRefusesIsSaidAndChangesNothing) {
  const std::vector<int> before = OwnCpus();
  for (const int missing : {CPU_SETSIZE - 1, CPU_SETSIZE, -1}) {
    const CpuScope scope({missing});
    ASSERT_FALSE(scope.status().ok());
    EXPECT_THAT(scope.status().error().message,
                HasSubstr("the CPUs " + std::to_string(missing) + ": Invalid argument"));
    EXPECT_EQ(OwnCpus(), before);
  }
  EXPECT_EQ(OwnCpus(), before);
}

}  // namespace
}  // namespace penstock
