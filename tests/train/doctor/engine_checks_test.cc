#include "train/doctor/engine_checks.h"

#include <gmock/gmock.h>

#include <array>
#include <cerrno>
#include <string>
#include <tuple>

#include "tests/temp_folder.h"
#include "tests/train/doctor/support.h"
#include "train/doctor/gpu_checks.h"
#include "train/doctor/program_checks.h"

namespace penstock::train {
namespace {

class EngineChecksTest : public testing::Test {
 protected:
  Check Uring(int error_number) const {
    const EngineFacts facts = {.uring = {.error_number = error_number, .features = {"nodrop"}},
                               .automatic = std::string("aio engine threads: why")};
    return EngineChecks(facts, files_)[0];
  }

  const TempFolder root_;
  const MachineFiles files_{root_.Path()};
};

TEST_F(EngineChecksTest, ARingThatCanBeMadeNamesItsFeatures) {
  EXPECT_THAT(Uring(0), CheckIs(CheckState::kOk, "available, with nodrop"));
}

TEST_F(EngineChecksTest, TheReasonWhyThereIsNoRingIsTheRightOne) {
  EXPECT_THAT(Uring(ENOSYS), CheckIs(CheckState::kWarn, "this kernel has none"));
  EXPECT_THAT(Uring(ENOMEM), CheckIs(CheckState::kWarn, "ulimit -l unlimited"));
  EXPECT_THAT(Uring(EPERM), CheckIs(CheckState::kWarn, "forbidden here"));
  EXPECT_THAT(Uring(EIO), CheckIs(CheckState::kWarn, "Input/output error"));
  root_.Write("proc/self/status", "Seccomp:\t2\nSeccomp_filters:\t1\n");
  EXPECT_THAT(Uring(EPERM), CheckIs(CheckState::kWarn, "a seccomp filter"));
  EXPECT_THAT(Uring(ENOSYS), CheckIs(CheckState::kWarn, "a seccomp filter"));
  root_.Write("proc/sys/kernel/io_uring_disabled", "2\n");
  EXPECT_THAT(Uring(EPERM), CheckIs(CheckState::kWarn, "kernel.io_uring_disabled is 2"));
}

TEST_F(EngineChecksTest, AGroupMayBeAllThatUsesRings) {
  root_.Write("proc/sys/kernel/io_uring_disabled", "1\n");
  EXPECT_THAT(Uring(EPERM), CheckIs(CheckState::kWarn, "kernel.io_uring_group"));
}

TEST_F(EngineChecksTest, WithoutAnyEngineTheCheckFails) {
  const Error none = MakeError(ErrorCode::kUnavailable, "no thread");
  const EngineFacts facts = {
      .uring = {.error_number = ENOSYS}, .libaio = none, .threads = none, .automatic = none};
  const Checks checks = EngineChecks(facts, files_);
  ASSERT_EQ(checks.size(), 4U);
  EXPECT_THAT(checks[1], CheckIs(CheckState::kWarn, "no thread"));
  EXPECT_THAT(checks[2], CheckIs(CheckState::kFail, "no thread"));
  EXPECT_THAT(checks[3], CheckIs(CheckState::kFail, "none: no thread"));
}

GpuFacts NoGpu() { return {.free_memory = MakeError(ErrorCode::kUnavailable, "there is no GPU")}; }

TEST(GpuChecksTest, WithoutADriverTheCpuComputesAndNothingIsWrong) {
  EXPECT_THAT(GpuChecks(NoGpu()), testing::Each(testing::Field(&Check::state, CheckState::kOk)));
}

TEST(GpuChecksTest, TrainComputesOnAGpuWhoseMemoryItCanAskFor) {
  GpuFacts facts = NoGpu();
  facts.models = {"NVIDIA H100"};
  facts.driver = "580.65.06";
  EXPECT_EQ(facts.device(), device::Kind::kCpu);
  facts.free_memory = 80_GiB;
  EXPECT_EQ(facts.device(), device::Kind::kCuda);
}

TEST(GpuChecksTest, ADriverIsReadFromTheKernelsFiles) {
  const TempFolder root;
  root.Write("proc/driver/nvidia/version",
             "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC "
             "2023\nGCC version:  gcc 12\n");
  root.Write("proc/driver/nvidia/gpus/0000:3b:00.0/information", "Model: \t\t NVIDIA H100\n");
  const GpuFacts facts = ReadGpuFacts(MachineFiles(root.Path()));
  EXPECT_EQ(facts.driver, "535.104.05");
  EXPECT_THAT(facts.models, testing::ElementsAre("NVIDIA H100"));
}

TEST(GpuChecksTest, ADriverOlderThanCudaNeedsFails) {
  GpuFacts facts = NoGpu();
  facts.models = {"NVIDIA H100"};
  for (const auto& [driver, cuda, state] :
       {std::tuple("450.80.01", 11080, CheckState::kFail),
        std::tuple("450.80.02", 11080, CheckState::kOk),
        std::tuple("525.60.12", 12000, CheckState::kFail),
        std::tuple("525.60.13", 12000, CheckState::kOk),
        std::tuple("1000.1", 13000, CheckState::kOk), std::tuple("1.1", 0, CheckState::kOk)}) {
    facts.driver = driver;
    facts.built_cuda = cuda;
    EXPECT_EQ(GpuChecks(facts)[1].state, state) << driver << " with " << cuda;
  }
  EXPECT_THAT(GpuChecks(facts)[0], CheckIs(CheckState::kWarn, "PENSTOCK_CUDA=ON"));
}

TEST(GpuChecksTest, VersionsOfDriversCompareByNumber) {
  EXPECT_TRUE(IsOlder("470.57.02", "525.60.13"));
  EXPECT_TRUE(IsOlder("535.54", "535.104.05"));
  EXPECT_TRUE(IsOlder("535", "535.1"));
  EXPECT_FALSE(IsOlder("535.104.05", "535.104.05"));
  EXPECT_FALSE(IsOlder("1000.1", "580.65.06"));
  EXPECT_FALSE(IsOlder("unknown", "580.65.06"));
}

TEST(GpuChecksTest, SeveralGpusWithoutNcclAreAWarning) {
  GpuFacts facts = NoGpu();
  facts.models = {"a", "b"};
  facts.built_cuda = 13000;
  facts.nccl_variables = {"NCCL_DEBUG=INFO"};
  EXPECT_THAT(GpuChecks(facts)[2], CheckIs(CheckState::kWarn, "NCCL_DEBUG=INFO set"));
  facts.nccl = 22304;
  EXPECT_THAT(GpuChecks(facts)[2], CheckIs(CheckState::kOk, "2.23.4"));
}

TEST(ProgramChecksTest, SlowInstructionSetsAreAWarningOnX86Alone) {
  constexpr std::array kSlow = {"SCALAR"};
  constexpr std::array kFast = {"AVX2", "SCALAR"};
  EXPECT_EQ(SimdCheck(kSlow, true).state, CheckState::kWarn);
  EXPECT_EQ(SimdCheck(kSlow, false).state, CheckState::kOk);
  EXPECT_THAT(SimdCheck(kFast, true), CheckIs(CheckState::kOk, "AVX2, SCALAR"));
}

TEST(ProgramChecksTest, TheProgramNamesItsCommitAndCompiler) {
  EXPECT_THAT(std::string(ProgramCommit()), testing::MatchesRegex("unknown|[0-9a-f]+(-dirty)?"));
  EXPECT_THAT(ProgramCheck(), CheckIs(CheckState::kOk, ProgramCommit()));
}

}  // namespace
}  // namespace penstock::train
