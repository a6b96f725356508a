#include "train/budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/train/temp_folder.h"
#include "train/log.h"

namespace penstock::train {
namespace {

using ::testing::HasSubstr;

MemoryNeeds SomeNeeds() {
  return {.device_minimum = 2560_B,
          .device_reserved = 512_B,
          .host_minimum = 8192_B,
          .device_sum = "parameters 2.00 KiB + activations 512 bytes",
          .host_sum = "gradients 4.00 KiB + states 4.00 KiB"};
}

constexpr MachineMemory kMachine = {.total = 1_GiB, .available = 800_MiB};

zero::Config Limits(Bytes device, Bytes host) {
  zero::Config config;
  config.device_memory = device;
  config.host_memory = host;
  return config;
}

TEST(Budget, ExactlyTheMinimumIsAccepted) {
  const Result<MemoryBudget> budget = DecideBudget(SomeNeeds(), Limits(2560_B, 8192_B), kMachine);
  ASSERT_TRUE(budget.ok()) << budget.error().message;
  EXPECT_EQ(budget->device, 2560_B);
  EXPECT_EQ(budget->host, 8192_B);
}

TEST(Budget, OneBlockLessOnTheDeviceIsRefusedWithTheSumAndTheSmallestThatWorks) {
  const Result<MemoryBudget> budget = DecideBudget(SomeNeeds(), Limits(2304_B, 8192_B), kMachine);
  ASSERT_FALSE(budget.ok());
  EXPECT_EQ(budget.error().code, ErrorCode::kBudget);
  EXPECT_EQ(ExitCode(budget.error().code), 2);
  EXPECT_THAT(budget.error().message, HasSubstr("2304 bytes"));
  EXPECT_THAT(budget.error().message, HasSubstr(SomeNeeds().device_sum));
  EXPECT_THAT(budget.error().message, HasSubstr("--device-memory 2560"));
}

TEST(Budget, OneByteLessOnTheHostIsRefusedWithTheSumAndTheSmallestThatWorks) {
  const Result<MemoryBudget> budget = DecideBudget(SomeNeeds(), Limits(2560_B, 8191_B), kMachine);
  ASSERT_FALSE(budget.ok());
  EXPECT_THAT(budget.error().message, HasSubstr("8191 bytes"));
  EXPECT_THAT(budget.error().message, HasSubstr(SomeNeeds().host_sum));
  EXPECT_THAT(budget.error().message, HasSubstr("--host-memory 8192"));
}

TEST(Budget, DeviceMemoryIsRoundedDownToItsBlocks) {
  const Result<MemoryBudget> budget = DecideBudget(SomeNeeds(), Limits(2815_B, 8192_B), kMachine);
  ASSERT_TRUE(budget.ok()) << budget.error().message;
  EXPECT_EQ(budget->device, 2560_B);
  EXPECT_FALSE(DecideBudget(SomeNeeds(), Limits(2559_B, 8192_B), kMachine).ok());
}

TEST(Budget, UnnamedLimitsAreSharesOfTheMachine) {
  const Result<MemoryBudget> budget = DecideBudget(SomeNeeds(), zero::Config(), kMachine);
  ASSERT_TRUE(budget.ok()) << budget.error().message;
  EXPECT_EQ(budget->device, 512_MiB);
  EXPECT_EQ(budget->host, 600_MiB);
}

TEST(MachineMemory, IsReadFromMeminfo) {
  const TempFolder folder;
  const std::string path =
      folder.Write("meminfo", "MemTotal:       1024 kB\nMemFree: 1 kB\nMemAvailable:    512 kB\n");
  const Result<MachineMemory> memory = ReadMachineMemory(path);
  ASSERT_TRUE(memory.ok()) << memory.error().message;
  EXPECT_EQ(memory->total, 1_MiB);
  EXPECT_EQ(memory->available, 512_KiB);
}

TEST(MachineMemory, ThatCannotBeReadAsksForTheOptions) {
  const Result<MachineMemory> memory = ReadMachineMemory("/no/such/meminfo");
  ASSERT_FALSE(memory.ok());
  EXPECT_THAT(memory.error().message, HasSubstr("--device-memory"));
}

TEST(MachineMemory, OfThisMachineIsPlausible) {
  const Result<MachineMemory> memory = ReadMachineMemory();
  ASSERT_TRUE(memory.ok()) << memory.error().message;
  EXPECT_GT(memory->available, 0_B);
  EXPECT_LE(memory->available, memory->total);
}

}  // namespace
}  // namespace penstock::train
