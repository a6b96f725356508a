#include "train/budget.h"

#include <fmt/format.h>
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

Result<MachineMemory> Machine() { return MachineMemory{.total = 1_GiB, .available = 800_MiB}; }

Result<MachineMemory> UnreadableMachine() { return MakeError(ErrorCode::kIo, "no meminfo"); }

zero::Config Limits(Bytes device, Bytes host) {
  zero::Config config;
  config.device_memory = device;
  config.host_memory = host;
  return config;
}

TEST(Budget, ExactlyTheMinimumIsAccepted) {
  const Result<MemoryBudget> budget = DecideBudget(SomeNeeds(), Limits(2560_B, 8192_B), Machine);
  ASSERT_TRUE(budget.ok()) << budget.error().message;
  EXPECT_EQ(budget->device, 2560_B);
  EXPECT_EQ(budget->host, 8192_B);
}

TEST(Budget, OneBlockLessOnTheDeviceIsRefusedWithTheSumAndTheSmallestThatWorks) {
  const Result<MemoryBudget> budget = DecideBudget(SomeNeeds(), Limits(2304_B, 8192_B), Machine);
  ASSERT_FALSE(budget.ok());
  EXPECT_EQ(budget.error().code, ErrorCode::kBudget);
  EXPECT_EQ(ExitCode(budget.error().code), 2);
  EXPECT_THAT(budget.error().message, HasSubstr("2304 bytes"));
  EXPECT_THAT(budget.error().message, HasSubstr(SomeNeeds().device_sum));
  EXPECT_THAT(budget.error().message, HasSubstr("--device-memory 2560"));
}

TEST(Budget, OneByteLessOnTheHostIsRefusedWithTheSumAndTheSmallestThatWorks) {
  const Result<MemoryBudget> budget = DecideBudget(SomeNeeds(), Limits(2560_B, 8191_B), Machine);
  ASSERT_FALSE(budget.ok());
  EXPECT_THAT(budget.error().message, HasSubstr("8191 bytes"));
  EXPECT_THAT(budget.error().message, HasSubstr(SomeNeeds().host_sum));
  EXPECT_THAT(budget.error().message, HasSubstr("--host-memory 8192"));
}

TEST(Budget, DeviceMemoryIsRoundedDownToItsBlocks) {
  const Result<MemoryBudget> budget = DecideBudget(SomeNeeds(), Limits(2815_B, 8192_B), Machine);
  ASSERT_TRUE(budget.ok()) << budget.error().message;
  EXPECT_EQ(budget->device, 2560_B);
  EXPECT_FALSE(DecideBudget(SomeNeeds(), Limits(2559_B, 8192_B), Machine).ok());
}

TEST(Budget, UnnamedLimitsAreSharesOfTheMachine) {
  const Result<MemoryBudget> budget = DecideBudget(SomeNeeds(), zero::Config(), Machine);
  ASSERT_TRUE(budget.ok()) << budget.error().message;
  EXPECT_EQ(budget->device, 512_MiB);
  EXPECT_EQ(budget->host, 600_MiB);
}

TEST(Budget, AGpuGivesWhatIsFreeButForAReserve) {
  const auto device_memory = [](Bytes free) {
    return DecideBudget(SomeNeeds(), zero::Config(),
                        [free]() -> Result<MachineMemory> {
                          return MachineMemory{.total = 1_GiB, .available = 800_MiB, .gpu = free};
                        })
        ->device;
  };
  EXPECT_EQ(device_memory(80_GiB), 79_GiB);
  EXPECT_EQ(device_memory(1_GiB), 512_MiB);
}

TEST(Budget, TheMachineIsAskedOnlyWhereALimitIsNotNamed) {
  EXPECT_TRUE(DecideBudget(SomeNeeds(), Limits(2560_B, 8192_B), UnreadableMachine).ok());
  zero::Config config = Limits(2560_B, 8192_B);
  config.host_memory.reset();
  const Result<MemoryBudget> budget = DecideBudget(SomeNeeds(), config, UnreadableMachine);
  ASSERT_FALSE(budget.ok());
  EXPECT_EQ(budget.error().message, "no meminfo");
}

/// A tree with /proc/meminfo: 1 GiB, of which 512 MiB are available.
class MachineMemoryTest : public ::testing::Test {
 protected:
  MachineMemoryTest() {
    root_.Write("proc/meminfo",
                "MemTotal:     1048576 kB\nMemFree: 1 kB\nMemAvailable:   524288 kB\n");
    root_.Write("proc/self/mountinfo",
                "41 31 0:38 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
                "42 31 0:39 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
  }
  void WriteGroup(const std::string& path, const std::string& limit, Bytes current,
                  Bytes inactive_file = 0_B) {
    const std::string folder = "sys/fs/cgroup/" + path + "/";
    root_.Write(folder + "memory.max", limit + "\n");
    root_.Write(folder + "memory.current", fmt::format("{}\n", current.value));
    root_.Write(folder + "memory.stat",
                fmt::format("anon 1\ninactive_file {}\nshmem 2\n", inactive_file.value));
  }
  void ExpectMemory(Bytes total, Bytes available) const {
    const Result<MachineMemory> memory = ReadMachineMemory(root_.Path());
    ASSERT_TRUE(memory.ok()) << memory.error().message;
    EXPECT_EQ(memory->total, total);
    EXPECT_EQ(memory->available, available);
  }

  const TempFolder root_;
};

TEST_F(MachineMemoryTest, WithoutControlGroupsIsThatOfMeminfo) { ExpectMemory(1_GiB, 512_MiB); }

TEST_F(MachineMemoryTest, IsWhatTheOwnControlGroupLeaves) {
  root_.Write("proc/self/cgroup", "4:memory:/v1\n0::/jobs/one\n");
  WriteGroup("jobs/one", "314572800", 100_MiB);
  ExpectMemory(200_MiB, 200_MiB);
}

TEST_F(MachineMemoryTest, IsWhatAGroupOfVersionOneLeaves) {
  root_.Write("proc/self/cgroup", "4:memory:/old\n0::/\n");
  root_.Write("sys/fs/cgroup/memory/old/memory.limit_in_bytes", "314572800\n");
  root_.Write("sys/fs/cgroup/memory/old/memory.usage_in_bytes", "157286400\n");
  root_.Write("sys/fs/cgroup/memory/old/memory.stat",
              "inactive_file 1\nhierarchical_memory_limit 2\ntotal_inactive_file 52428800\n");
  ExpectMemory(200_MiB, 200_MiB);
}

TEST_F(MachineMemoryTest, IsWhatTheNarrowestGroupAboveLeaves) {
  root_.Write("proc/self/cgroup", "0::/jobs/one\n");
  WriteGroup("jobs/one", "max", 100_MiB);
  WriteGroup("jobs", "734003200", 0_MiB);
  ExpectMemory(700_MiB, 512_MiB);
  WriteGroup("jobs", "209715200", 100_MiB);
  ExpectMemory(100_MiB, 100_MiB);
}

TEST_F(MachineMemoryTest, OfAContainerIsLimitedByTheGroupItTakesForTheTop) {
  root_.Write("proc/self/cgroup", "0::/\n");
  WriteGroup("", "209715200", 100_MiB);
  ExpectMemory(100_MiB, 100_MiB);
}

TEST_F(MachineMemoryTest, CountsPageCacheThatTheGroupCanGiveUpAsFree) {
  root_.Write("proc/self/cgroup", "0::/job\n");
  WriteGroup("job", "209715200", 190_MiB, 90_MiB);
  ExpectMemory(100_MiB, 100_MiB);
}

TEST_F(MachineMemoryTest, OfAGroupThatIsFullIsNone) {
  root_.Write("proc/self/cgroup", "0::/job\n");
  WriteGroup("job", "209715200", 201_MiB);
  ExpectMemory(0_B, 0_B);
}

TEST(MachineMemory, ThatCannotBeReadAsksForTheOptions) {
  const Result<MachineMemory> memory = ReadMachineMemory("/no/such/root");
  ASSERT_FALSE(memory.ok());
  EXPECT_THAT(memory.error().message, HasSubstr("--device-memory"));
}

TEST(MachineMemory, OfThisMachineIsPlausible) {
  const Result<MachineMemory> memory = ReadMachineMemory();
  ASSERT_TRUE(memory.ok()) << memory.error().message;
  EXPECT_GT(memory->available, 0_B);
  EXPECT_LE(memory->available, memory->total);
}

/// A small GPT-2 on a machine of 1 GiB.
class PlanMemoryTest : public ::testing::Test {
 protected:
  PlanMemoryTest() {
    config_.optimizer_home = Tier::kHost;
    config_.parameter_home = Tier::kHost;
    config_.compute_threads = 1;
  }
  Result<MemoryNeeds> Plan() const {
    return PlanMemory({.spec = Gpt2Spec(model_),
                       .model = model_,
                       .shape = shape_,
                       .config = config_,
                       .kind = device::Kind::kCpu},
                      Machine);
  }

  const Gpt2Config model_ = {
      .vocab_size = 256, .n_positions = 1 << 24, .n_embd = 2, .n_layer = 1, .n_head = 1};
  Gpt2Shape shape_ = {.micro_batch = 1, .micro_batches = 1, .sequence = 8};
  zero::Config config_;
};

TEST_F(PlanMemoryTest, HostMemoryGrowsWithWhatIsKeptOfEveryMicroBatch) {
  const Bytes one = Plan()->host_minimum;
  shape_.micro_batches = 10'001;
  // Inputs and targets in the loop and under way to the device.
  EXPECT_GT(Plan()->host_minimum - one, Bytes{10'000 * 4 * 8 * sizeof(int32_t)});
}

TEST_F(PlanMemoryTest, WhatNoMachineHoldsIsRefusedWithWhatDoesFit) {
  shape_.micro_batches = uint64_t{1} << 31;
  const Result<MemoryNeeds> needs = Plan();
  ASSERT_FALSE(needs.ok());
  EXPECT_EQ(needs.error().code, ErrorCode::kBudget);
  const std::string& message = needs.error().message;
  const std::string before = "gradient_accumulation_steps of ";
  const size_t at = message.find(before);
  ASSERT_NE(at, std::string::npos) << message;
  shape_.micro_batches = std::stoull(message.substr(at + before.size()));
  EXPECT_TRUE(Plan().ok());
  ++shape_.micro_batches;
  EXPECT_FALSE(Plan().ok());
}

TEST_F(PlanMemoryTest, WhatDoesNotFit64BitsIsRefused) {
  shape_ = {.micro_batch = 1U << 31, .micro_batches = 1U << 31, .sequence = 1 << 24};
  const Result<MemoryNeeds> needs = Plan();
  ASSERT_FALSE(needs.ok());
  EXPECT_THAT(needs.error().message, HasSubstr("more than 2^63 bytes"));
}

}  // namespace
}  // namespace penstock::train
