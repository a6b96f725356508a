// That OpenMP gives the threads it is asked for, as the bits of a product depend on their number,
// and where they run.
#include "kernels/cpu_parallel.h"

#include <gtest/gtest.h>
#include <omp.h>
#include <sched.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

#include "base/cpu_scope.h"
#include "device/device.h"
#include "kernels/model/model_operators.h"
#include "tests/kernels/layer_operators.h"

namespace penstock::kernels {
namespace {

TEST(ThreadCountScopeTest, AllThreadsAreGivenAlsoWhereOpenMPMayGiveFewer) {
  omp_set_dynamic(1);
  const int threads = static_cast<int>(std::thread::hardware_concurrency()) + 3;
  {
    const ThreadCountScope scope(threads);
    EXPECT_EQ(omp_get_max_threads(), threads);
    std::mutex mutex;
    std::set<std::thread::id> seen;
    ParallelParts(threads, [&](int) {
      const std::lock_guard<std::mutex> lock(mutex);
      seen.insert(std::this_thread::get_id());
    });
    EXPECT_EQ(seen.size(), static_cast<size_t>(threads));
  }
  EXPECT_NE(omp_get_dynamic(), 0) << "restored";
  omp_set_dynamic(0);
}

TEST(RunPartsTest, ATeamRunsOnTheCpusThatItsStreamWasStartedOn) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  ASSERT_EQ(::sched_getaffinity(0, sizeof(allowed), &allowed), 0);
  int last = CPU_SETSIZE - 1;
  while (!CPU_ISSET(last, &allowed)) --last;
  const auto device = device::CreateCpuDevice({.memory = 1_MiB}).value();
  std::unique_ptr<device::Stream> stream;
  {
    const CpuScope scope({last});
    ASSERT_TRUE(scope.status().ok()) << scope.status().error().message;
    stream = device->CreateStream("compute").value();
  }
  constexpr int kThreads = 5;
  std::mutex mutex;
  std::map<std::thread::id, cpu_set_t> seen;
  static_cast<device::CpuStream&>(*stream).Launch([&] {
    const ThreadCountScope count(kThreads);
    ParallelParts(kThreads, [&](int) {
      const std::lock_guard<std::mutex> lock(mutex);
      ::sched_getaffinity(0, sizeof(cpu_set_t), &seen[std::this_thread::get_id()]);
    });
  });
  ASSERT_TRUE(stream->Synchronize().ok());
  EXPECT_EQ(seen.size(), static_cast<size_t>(kThreads));
  for (const auto& [thread, cpus] : seen) {
    EXPECT_EQ(CPU_COUNT(&cpus), 1);
    EXPECT_TRUE(CPU_ISSET(last, &cpus));
  }
}

TEST(ThreadLimitDeathTest, OperatorsThatNeedMoreThreadsThanOpenMPGivesAreRefused) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";  // a new process reads the variable
  // NOLINTNEXTLINE(concurrency-mt-unsafe): no other thread runs
  ASSERT_EQ(::setenv("OMP_THREAD_LIMIT", "2", 1), 0);
  const auto create = [](int threads) {
    const auto device = device::CreateCpuDevice({.memory = 1_MiB}).value();
    return CreateModelOperators(*device, LayerOptions(DType::kFloat32, {1, 1, 8, 1, 8, 8}, threads))
        .status();
  };
  EXPECT_EXIT(
      {
        const Status refused = create(3);
        const bool right =
            create(2).ok() && !refused.ok() && refused.error().code == ErrorCode::kUnavailable;
        if (right) std::fputs(refused.error().message.c_str(), stderr);
        std::_Exit(right ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "at most 2 threads, not 3; raise OMP_THREAD_LIMIT");
  ::unsetenv("OMP_THREAD_LIMIT");  // NOLINT(concurrency-mt-unsafe)
}

}  // namespace
}  // namespace penstock::kernels
