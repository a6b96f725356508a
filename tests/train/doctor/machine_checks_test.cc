#include "train/doctor/machine_checks.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <string>

#include "tests/temp_folder.h"
#include "tests/train/doctor/support.h"
#include "train/doctor/limit_checks.h"

namespace penstock::train {
namespace {

using ::testing::Each;

/// A machine that is described in a folder.
class MachineChecksTest : public testing::Test {
 protected:
  void WriteMachine() const {
    root_.Write("proc/sys/kernel/osrelease", "6.1.0-18-amd64\n");
    root_.Write("proc/self/status", "Name:\tx\nCpus_allowed_list:\t0-3,8\n");
    root_.Write("proc/cpuinfo", "processor\t: 0\nmodel name\t: Fast CPU\n");
    root_.Write("sys/devices/system/cpu/online", "0-15\n");
    root_.Write("sys/devices/system/node/online", "0-1\n");
    root_.Write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
    root_.Write("proc/meminfo", "MemTotal: 67108864 kB\nMemAvailable: 33554432 kB\n");
    root_.Write("proc/self/cgroup", "0::/jobs\n");
    root_.Write("proc/self/mountinfo", "41 31 0:38 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  }
  void WriteLimits(const std::string& locked) const {
    root_.Write("proc/self/limits",
                "Limit                     Soft Limit           Hard Limit           Units\n"
                "Max file size             unlimited            unlimited            bytes\n"
                "Max processes             96365                96365                processes\n"
                "Max open files            1024                 20000                files\n"
                "Max locked memory         " +
                    locked +
                    "                65536                bytes\n"
                    "Max address space         1073741824           unlimited            bytes\n");
  }

  const TempFolder root_;
  const MachineFiles files_{root_.Path()};
};

TEST_F(MachineChecksTest, WithoutAnyFileEverythingIsUnknownAndNothingFails) {
  for (const Checks& checks : {MachineChecks(files_), LimitChecks(files_)}) {
    EXPECT_THAT(checks, Each(CheckIs(CheckState::kUnknown, "unknown: ")));
  }
}

TEST_F(MachineChecksTest, FilesThatAreFoldersOrEmptyOrNoNumbersAreUnknown) {
  for (const char* path : {"proc/sys/kernel/osrelease", "proc/meminfo", "proc/self/limits"}) {
    std::filesystem::create_directories(root_.Path(path));
  }
  root_.Write("sys/devices/system/node/online", "");
  root_.Write("proc/self/status", "Cpus_allowed_list:\t3-1,x\n");
  EXPECT_EQ(KernelCheck(files_).state, CheckState::kUnknown);
  EXPECT_EQ(MemoryCheck(files_).state, CheckState::kUnknown);
  EXPECT_EQ(NumaCheck(files_).state, CheckState::kUnknown);
  EXPECT_EQ(CpuCheck(files_).state, CheckState::kUnknown);
  EXPECT_EQ(LockedMemoryCheck(files_).state, CheckState::kUnknown);
}

TEST_F(MachineChecksTest, AGoodMachineHasNothingToDo) {
  WriteMachine();
  EXPECT_THAT(MachineChecks(files_), Each(testing::Field(&Check::state, CheckState::kOk)));
  EXPECT_THAT(CpuCheck(files_), CheckIs(CheckState::kOk, "5 of 16 online may be used (Fast CPU)"));
  EXPECT_THAT(NumaCheck(files_), CheckIs(CheckState::kOk, "2 nodes (0-1)"));
  EXPECT_THAT(KernelCheck(files_), CheckIs(CheckState::kOk, "6.1.0-18-amd64, no container seen"));
}

TEST_F(MachineChecksTest, AnOldKernelAndAContainerAreNamed) {
  root_.Write("proc/sys/kernel/osrelease", "5.4.0-150-generic\n");
  root_.Write(".dockerenv", "");
  EXPECT_THAT(KernelCheck(files_), CheckIs(CheckState::kWarn, "in a container (docker)"));
}

TEST_F(MachineChecksTest, AGroupOf512MebibytesIsNamedWithItsLimitAndWhatToDo) {
  WriteMachine();
  root_.Write("sys/fs/cgroup/jobs/memory.max", "536870912\n");
  root_.Write("sys/fs/cgroup/jobs/memory.current", "104857600\n");
  EXPECT_THAT(MemoryLimitCheck(files_),
              CheckIs(CheckState::kWarn, "512.0 MiB by the control group /sys/fs/cgroup/jobs"));
  EXPECT_THAT(MemoryLimitCheck(files_), CheckIs(CheckState::kWarn, "--host-memory"));
  EXPECT_THAT(MemoryCheck(files_), CheckIs(CheckState::kWarn, "412.0 MiB available"));
}

TEST_F(MachineChecksTest, TheLowestLimitCountsAndThatOfVersionOneMayBeNone) {
  WriteMachine();
  root_.Write("proc/self/cgroup", "4:memory:/old/inner\n");
  root_.Write("proc/self/mountinfo",
              "42 31 0:39 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
  const std::string folder = "sys/fs/cgroup/memory/old/";
  root_.Write(folder + "memory.limit_in_bytes", "4294967296\n");
  root_.Write(folder + "inner/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_THAT(MemoryLimitCheck(files_),
              CheckIs(CheckState::kOk, "4.00 GiB by the control group /sys/fs/cgroup/memory/old"));
}

TEST_F(MachineChecksTest, AQuotaBelowTheCpusIsAWarning) {
  WriteMachine();
  root_.Write("sys/fs/cgroup/jobs/cpu.max", "150000 100000\n");
  EXPECT_THAT(CpuQuotaCheck(files_), CheckIs(CheckState::kWarn, "1.50 CPUs' time for 5 CPUs"));
  root_.Write("sys/fs/cgroup/jobs/cpu.max", "500000 100000\n");
  EXPECT_EQ(CpuQuotaCheck(files_).state, CheckState::kOk);
}

TEST_F(MachineChecksTest, HugePagesThatAreOffAreAWarning) {
  root_.Write("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
  EXPECT_THAT(HugePageCheck(files_), CheckIs(CheckState::kWarn, "echo madvise"));
}

TEST_F(MachineChecksTest, SixtyFourKibibytesOfLockedMemoryAreAWarning) {
  WriteLimits("65536");
  root_.Write("proc/self/status", "CapEff:\t0000000000000000\n");
  root_.Write("proc/self/uid_map", "         0          0 4294967295\n");
  EXPECT_THAT(LockedMemoryCheck(files_), CheckIs(CheckState::kWarn, "64.0 KiB; io_uring"));
  EXPECT_THAT(LockedMemoryCheck(files_), CheckIs(CheckState::kWarn, "ulimit -l unlimited"));
  WriteLimits("unlimited");
  EXPECT_THAT(LockedMemoryCheck(files_), CheckIs(CheckState::kOk, "unlimited"));
}

TEST_F(MachineChecksTest, ACapabilityLiftsTheLimitUnlessItIsThatOfAContainersOwnUsers) {
  WriteLimits("65536");
  root_.Write("proc/self/status", "CapEff:\t000001ffffffffff\n");
  root_.Write("proc/self/uid_map", "         0          0 4294967295\n");
  EXPECT_THAT(LockedMemoryCheck(files_), CheckIs(CheckState::kOk, "CAP_IPC_LOCK"));
  root_.Write("proc/self/uid_map", "         0       1000          1\n");
  EXPECT_EQ(LockedMemoryCheck(files_).state, CheckState::kWarn);
}

TEST_F(MachineChecksTest, OtherLimitsAreHeldAgainstWhatTrainingNeeds) {
  WriteLimits("unlimited");
  const Checks checks = LimitChecks(files_);
  ASSERT_EQ(checks.size(), 5U);
  EXPECT_THAT(checks[1], CheckIs(CheckState::kOk, "1024 files"));
  EXPECT_THAT(checks[2], CheckIs(CheckState::kOk, "96365 processes"));
  EXPECT_THAT(checks[3], CheckIs(CheckState::kOk, "unlimited"));
  EXPECT_THAT(checks[4], CheckIs(CheckState::kWarn, "1.00 GiB; memory is mapped"));
}

}  // namespace
}  // namespace penstock::train
