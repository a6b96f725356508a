// How many threads update on a GPU's host, on machines that hwloc is told about.
#include <cstdlib>
#include <string>
#include <vector>

#include "base/cpu_quota.h"
#include "tests/front/cuda_training.h"

namespace penstock::front {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

class CCudaThreads : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (CpuQuota()) GTEST_SKIP() << "a container's quota limits the threads";
  }
  void TearDown() override {
    for (const char* const name : {"HWLOC_SYNTHETIC", "HWLOC_THISSYSTEM"}) {
      ::unsetenv(name);  // NOLINT(concurrency-mt-unsafe): no thread is running
    }
    fake_cuda_pci_bus_id("");
    CudaTest::TearDown();
  }
  static void Pretend(const char* machine) {
    ::setenv("HWLOC_SYNTHETIC", machine, 1);  // NOLINT(concurrency-mt-unsafe)
    ::setenv("HWLOC_THISSYSTEM", "0", 1);     // NOLINT(concurrency-mt-unsafe)
  }
  static json Describe(const Home& home, bool cuda) {
    const TempFolder folder;
    CTraining training(home, folder.Path(), "bf16", 1, {{"cuda", cuda}});
    return training.engine().Describe();
  }
  static int Threads(const Home& home, bool cuda) {
    return Describe(home, cuda)["optimizer_threads"].get<int>();
  }
};

struct Machine {
  const char* synthetic;
  int cores;
  int beside_computation;  ///< optimizer threads where the model is computed on the CPU
};

TEST_F(CCudaThreads, AllCoresUpdateButOneAndThatOfTheIoThreads) {
  const Home& host = kHomes[1];
  const Home& nvme = kHomes[3];
  for (const Machine& machine :
       {Machine{"pack:1 core:16 pu:1", 16, 1}, Machine{"pack:2 core:16 pu:1", 32, 2},
        Machine{"pack:1 core:8 pu:2", 8, 2}, Machine{"node:2 core:32 pu:1", 64, 4}}) {
    Pretend(machine.synthetic);
    EXPECT_EQ(Threads(host, true), machine.cores - 1) << machine.synthetic;
    EXPECT_EQ(Threads(nvme, true), machine.cores - 2) << machine.synthetic;
    EXPECT_EQ(Threads(host, false), machine.beside_computation) << machine.synthetic;
  }
}

TEST_F(CCudaThreads, MemoryIsPlacedByTheGpuWhoseContextIsCurrent) {
  Pretend("node:2 core:4 pu:1");
  fake_cuda_pci_bus_id("0000:81:00.0");
  EXPECT_THAT(Describe(kHomes[1], true)["notices"].get<std::vector<std::string>>(),
              Contains(HasSubstr("GPU 0000:81:00.0")));
  ASSERT_EQ(cuCtxSetCurrent(nullptr), 0);
  const json described = Describe(kHomes[1], true);
  EXPECT_THAT(described["notices"].get<std::vector<std::string>>(),
              Not(Contains(HasSubstr("0000:81:00.0"))));
  EXPECT_EQ(described["optimizer_threads"], 7);
}

TEST_F(CCudaThreads, AChosenNumberIsKept) {
  Pretend("pack:1 core:16 pu:1");
  const TempFolder folder;
  CTraining training(kHomes[1], folder.Path(), "bf16", 1, {{"cuda", true}},
                     {{"penstock", {{"optimizer_threads", 3}}}});
  EXPECT_EQ(training.engine().Describe()["optimizer_threads"], 3);
}

}  // namespace
}  // namespace penstock::front
