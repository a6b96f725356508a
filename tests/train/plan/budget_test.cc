#include "train/plan/budget.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>

#include "train/models/gpt2_family.h"
#include "train/process/log.h"

namespace penstock::train {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

MemoryNeeds SomeNeeds() {
  return {.device_minimum = 2560_B,
          .host_minimum = 8192_B,
          .reserved = {.activations = 512_B},
          .device_sum = "parameters 2.00 KiB + activations 512 bytes",
          .host_sum = "gradients 4.00 KiB + states 4.00 KiB"};
}

constexpr MachineMemory kSmallMachine = {.total = 1_GiB, .available = 800_MiB};

Result<OfferedMemory> Machine() { return OfferedMemory{.machine = kSmallMachine}; }

Result<OfferedMemory> UnreadableMachine() { return MakeError(ErrorCode::kIo, "no meminfo"); }

config::Config Limits(Bytes device, Bytes host) {
  config::Config config;
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

TEST(Budget, AllThatIsMissingIsNamedAtOnce) {
  const Result<MemoryBudget> budget = DecideBudget(SomeNeeds(), Limits(2304_B, 8191_B), Machine);
  ASSERT_FALSE(budget.ok());
  EXPECT_THAT(budget.error().message, HasSubstr(SomeNeeds().device_sum));
  EXPECT_THAT(budget.error().message, HasSubstr(SomeNeeds().host_sum));
  EXPECT_THAT(budget.error().message, HasSubstr("--device-memory 2560 --host-memory 8192"));
}

TEST(Budget, DeviceMemoryIsRoundedDownToItsBlocks) {
  const Result<MemoryBudget> budget = DecideBudget(SomeNeeds(), Limits(2815_B, 8192_B), Machine);
  ASSERT_TRUE(budget.ok()) << budget.error().message;
  EXPECT_EQ(budget->device, 2560_B);
  EXPECT_FALSE(DecideBudget(SomeNeeds(), Limits(2559_B, 8192_B), Machine).ok());
}

TEST(Budget, WhatNcclHoldsIsTakenFromTheDevicesLimit) {
  const MemoryBudget budget{.device = 4096_B, .host = 8192_B};
  EXPECT_EQ(ArenaBeside(0_B, SomeNeeds(), budget).value(), 4096_B);
  EXPECT_EQ(ArenaBeside(1000_B, SomeNeeds(), budget).value(), 3072_B);
  EXPECT_EQ(ArenaBeside(1536_B, SomeNeeds(), budget).value(), 2560_B);
  const Result<Bytes> refused = ArenaBeside(1537_B, SomeNeeds(), budget);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kBudget);
  EXPECT_THAT(refused.error().message, HasSubstr("+ NCCL 1.75 KiB = 4352 bytes"));
  EXPECT_THAT(refused.error().message, HasSubstr("--device-memory 4352"));
}

TEST(Budget, UnnamedLimitsAreSharesOfTheMachine) {
  const Result<MemoryBudget> budget = DecideBudget(SomeNeeds(), config::Config(), Machine);
  ASSERT_TRUE(budget.ok()) << budget.error().message;
  EXPECT_EQ(budget->device, 512_MiB);
  EXPECT_EQ(budget->host, 600_MiB);
}

TEST(Budget, AGpuGivesWhatIsFreeButForAReserve) {
  const auto device_memory = [](Bytes free) {
    return DecideBudget(SomeNeeds(), config::Config(),
                        [free]() -> Result<OfferedMemory> {
                          return OfferedMemory{.machine = kSmallMachine, .gpu = free};
                        })
        ->device;
  };
  EXPECT_EQ(device_memory(80_GiB), 79_GiB);
  EXPECT_EQ(device_memory(1_GiB), 512_MiB);
}

TEST(Budget, TheMachineIsAskedOnlyWhereALimitIsNotNamed) {
  EXPECT_TRUE(DecideBudget(SomeNeeds(), Limits(2560_B, 8192_B), UnreadableMachine).ok());
  config::Config config = Limits(2560_B, 8192_B);
  config.host_memory.reset();
  const Result<MemoryBudget> budget = DecideBudget(SomeNeeds(), config, UnreadableMachine);
  ASSERT_FALSE(budget.ok());
  EXPECT_EQ(budget.error().message, "no meminfo");
}

TEST(OfferedMemoryTest, IsThatOfTheMachineAndOfTheGpu) {
  const Result<OfferedMemory> memory = ReadOfferedMemory(2_GiB);
  ASSERT_TRUE(memory.ok()) << memory.error().message;
  EXPECT_GT(memory->machine.total, 0_B);
  EXPECT_EQ(memory->gpu, 2_GiB);
}

TEST(OfferedMemoryTest, OfAMachineThatCannotBeReadAsksForTheOptions) {
  const Result<OfferedMemory> memory = ReadOfferedMemory(std::nullopt, 1, "/no/such/root");
  ASSERT_FALSE(memory.ok());
  EXPECT_EQ(memory.error().message,
            "/no/such/root/proc/meminfo does not say how much memory there is; name it with "
            "--device-memory and --host-memory");
}

/// A small GPT-2 on a machine of 1 GiB.
class MemoryNeedsTest : public ::testing::Test {
 protected:
  MemoryNeedsTest() {
    config_.optimizer_home = Tier::kHost;
    config_.parameter_home = Tier::kHost;
    config_.compute_threads = 1;
  }
  Result<MemoryNeeds> Plan(const comm::World& world = {}) const {
    return SumMemoryNeeds({.spec = model_->Spec(),
                           .model = *model_,
                           .shape = shape_,
                           .config = config_,
                           .kind = device::Kind::kCpu,
                           .world = world},
                          Machine);
  }
  void Accumulate(uint64_t micro_batches) {
    shape_.micro_batches = micro_batches;
    config_.gradient_accumulation_steps = micro_batches;
  }

  const std::shared_ptr<const ModelDescription> model_ = DescribeGpt2(
      {.vocab_size = 256, .n_positions = 1 << 24, .n_embd = 2, .n_layer = 1, .n_head = 1});
  BatchShape shape_ = {.micro_batch = 1, .micro_batches = 1, .sequence = 8};
  config::Config config_;
};

TEST_F(MemoryNeedsTest, HostMemoryGrowsWithWhatIsKeptOfEveryMicroBatch) {
  const Bytes one = Plan()->host_minimum;
  Accumulate(10'001);
  // Inputs and targets in the loop and under way to the device.
  EXPECT_GT(Plan()->host_minimum - one, Bytes{10'000 * 4 * 8 * sizeof(int32_t)});
}

TEST_F(MemoryNeedsTest, ConnectionsToTheOtherRanksAreInTheSum) {
  EXPECT_THAT(Plan()->host_sum, Not(HasSubstr("connections")));
  EXPECT_THAT(Plan({.size = 4, .local_size = 4})->host_sum,
              HasSubstr(" + connections to the other ranks 18.0 KiB"));
}

TEST_F(MemoryNeedsTest, WhatNoMachineHoldsIsRefusedWithWhatDoesFit) {
  Accumulate(uint64_t{1} << 31);
  const Result<MemoryNeeds> needs = Plan();
  ASSERT_FALSE(needs.ok());
  EXPECT_EQ(needs.error().code, ErrorCode::kBudget);
  const std::string& message = needs.error().message;
  const std::string before = "gradient_accumulation_steps of ";
  const size_t at = message.find(before);
  ASSERT_NE(at, std::string::npos) << message;
  const uint64_t most = std::stoull(message.substr(at + before.size()));
  Accumulate(most);
  EXPECT_TRUE(Plan().ok());
  Accumulate(most + 1);
  EXPECT_FALSE(Plan().ok());
}

TEST_F(MemoryNeedsTest, WhatDoesNotFit64BitsIsRefused) {
  shape_ = {.micro_batch = 1U << 31, .micro_batches = 1U << 31, .sequence = 1 << 24};
  const Result<MemoryNeeds> needs = Plan();
  ASSERT_FALSE(needs.ok());
  EXPECT_THAT(needs.error().message, HasSubstr("more than 2^63 bytes"));
}

}  // namespace
}  // namespace penstock::train
