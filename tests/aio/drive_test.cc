// The drives that are made of others: the faults they plan and the time they model.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <vector>

#include "aio/fault_drive.h"
#include "aio/libaio_drive.h"
#include "aio/throttled_drive.h"
#include "tests/aio/support.h"

namespace penstock::aio {
namespace {

using std::chrono::microseconds;
using std::chrono::nanoseconds;

const SpeedModel::Time kStart = SpeedModel::Time(nanoseconds(1'000'000'000));

TEST(SpeedModel, BlocksPassOneAfterTheOtherAtTheRateAndOverlapTheLatency) {
  SpeedModel model({.read_gbps = 2, .write_gbps = 1, .latency_us = 10});
  EXPECT_EQ(model.Enter(Operation::kRead, Bytes{2000}, kStart) - kStart,
            nanoseconds(1000) + microseconds(10));
  EXPECT_EQ(model.Enter(Operation::kRead, Bytes{2000}, kStart) - kStart,
            nanoseconds(2000) + microseconds(10));
  EXPECT_EQ(model.Enter(Operation::kWrite, Bytes{2000}, kStart) - kStart,
            nanoseconds(2000) + microseconds(10));
  const auto later = kStart + microseconds(100);
  EXPECT_EQ(model.Enter(Operation::kRead, Bytes{2000}, later) - later,
            nanoseconds(1000) + microseconds(10));
}

TEST(SpeedModel, ASharedPipeAddsReadsAndWrites) {
  SpeedModel model({.read_gbps = 1, .write_gbps = 100, .shared = true});
  EXPECT_EQ(model.Enter(Operation::kRead, Bytes{1000}, kStart) - kStart, nanoseconds(1000));
  EXPECT_EQ(model.Enter(Operation::kWrite, Bytes{1000}, kStart) - kStart, nanoseconds(2000));
}

TEST(SpeedModel, ZeroMeansUnlimited) {
  SpeedModel model({});
  EXPECT_EQ(model.Enter(Operation::kRead, 1_GiB, kStart), kStart);
}

/// Completes every block in full at the next Reap and records it.
class PerfectDrive final : public Drive {
 public:
  explicit PerfectDrive(std::vector<BlockOperation>& log) : log_(log) {}
  void Submit(const BlockOperation& block) override {
    log_.push_back(block);
    results_.push_back({block.slot, static_cast<int64_t>(block.data.size())});
  }
  void Reap(bool, std::vector<BlockResult>& results) override {
    results.insert(results.end(), results_.begin(), results_.end());
    results_.clear();
  }
  void Wake() override {}
  const std::string& name() const override { return name_; }

 private:
  const std::string name_ = "perfect";
  std::vector<BlockOperation>& log_;
  std::vector<BlockResult> results_;
};

constexpr uint32_t kSlots = 100;

class FaultDriveTest : public testing::Test {
 protected:
  /// Reports of kSlots blocks, alternately reads and writes, in the order of the reports.
  std::vector<BlockResult> RunAll(const FaultPlan& plan) {
    log_.clear();
    FaultDrive drive(std::make_unique<PerfectDrive>(log_), plan, kSlots);
    for (uint32_t slot = 0; slot < kSlots; ++slot) {
      drive.Submit({.operation = slot % 2 == 0 ? Operation::kRead : Operation::kWrite,
                    .data = buffer_.bytes(),
                    .alignment = 512_B,
                    .slot = slot});
    }
    std::vector<BlockResult> results;
    while (results.size() < kSlots) drive.Reap(true, results);
    return results;
  }

  static std::vector<int64_t> BySlot(const std::vector<BlockResult>& results) {
    std::vector<int64_t> by_slot(kSlots, INT64_MIN);
    for (const BlockResult& result : results) {
      EXPECT_EQ(by_slot[result.slot], INT64_MIN) << "reported twice";
      by_slot[result.slot] = result.result;
    }
    return by_slot;
  }

  std::vector<BlockOperation> log_;
  Buffer buffer_{4096 + 512};
};

TEST_F(FaultDriveTest, PositionsCountTheBlocksOfTheNamedOperation) {
  FaultPlan plan;
  plan.faults.push_back({.operation = Operation::kWrite, .first_block = 3, .count = 2});
  plan.faults.push_back({.first_block = 10, .error_number = ENOSPC});
  const auto results = BySlot(RunAll(plan));
  for (uint32_t slot = 0; slot < kSlots; ++slot) {
    const int64_t expected = slot == 7 || slot == 9 ? -EIO : slot == 10 ? -ENOSPC : 4608;
    EXPECT_EQ(results[slot], expected) << slot;
  }
  EXPECT_EQ(log_.size(), kSlots - 3) << "a block with an error never reaches the drive";
}

TEST_F(FaultDriveTest, ShortBlocksKeepTheAlignment) {
  FaultPlan plan;
  plan.faults.push_back({.kind = Fault::Kind::kShort, .first_block = 4});
  EXPECT_EQ(BySlot(RunAll(plan))[4], 2048);
}

TEST_F(FaultDriveTest, ADelayedBlockIsReportedBehindTheOthers) {
  FaultPlan plan;
  plan.faults.push_back({.kind = Fault::Kind::kDelay, .first_block = 0});
  EXPECT_EQ(RunAll(plan).back().slot, 0u);
}

TEST_F(FaultDriveTest, DelaysAtRandomFollowTheSeed) {
  const auto order = [&](uint64_t seed) {
    std::vector<uint32_t> slots;
    for (const BlockResult& result : RunAll({.seed = seed, .delay_chance = 0.1})) {
      slots.push_back(result.slot);
    }
    return slots;
  };
  const auto first = order(5);
  EXPECT_EQ(order(5), first);
  EXPECT_NE(order(6), first);
  EXPECT_FALSE(std::ranges::is_sorted(first));
}

TEST_F(FaultDriveTest, ReorderingReportsEveryBlockOnceInAnotherOrder) {
  FaultPlan plan;
  plan.reorder = true;
  const auto results = RunAll(plan);
  BySlot(results);
  EXPECT_FALSE(std::ranges::is_sorted(results, {}, &BlockResult::slot));
}

TEST_F(FaultDriveTest, RandomFaultsFollowTheSeedAndTheChances) {
  FaultPlan plan = {.seed = 5, .error_chance = 0.2, .transient_chance = 0.2, .short_chance = 0.2};
  const auto first = BySlot(RunAll(plan));
  EXPECT_EQ(BySlot(RunAll(plan)), first);
  plan.seed = 6;
  EXPECT_NE(BySlot(RunAll(plan)), first);
  for (const int64_t kind : {int64_t{-EIO}, int64_t{-EINTR}, int64_t{-EAGAIN}, int64_t{2048}}) {
    EXPECT_GT(std::ranges::count(first, kind), 0) << kind;
  }
  EXPECT_EQ(BySlot(RunAll({.error_chance = 1})), std::vector<int64_t>(kSlots, -EIO));
  EXPECT_EQ(BySlot(RunAll({})), std::vector<int64_t>(kSlots, 4608));
}

TEST(LibaioDrive, ABlockThatTheKernelRefusesStopsNoneOfItsBatch) {
  auto drive = LibaioDrive::Create(5, false);
  if (!drive.ok()) GTEST_SKIP() << drive.error().message;
  ScratchFile file(false);
  Buffer buffer(4096);
  for (uint32_t slot = 0; slot < 5; ++slot) {
    (*drive)->Submit({.operation = Operation::kWrite,
                      .fd = slot == 2 ? -1 : file.get().fd(),
                      .offset = FileOffset{slot * 4096},
                      .data = buffer.bytes(),
                      .alignment = 1_B,
                      .slot = slot});
  }
  std::vector<BlockResult> results;
  while (results.size() < 5) (*drive)->Reap(true, results);
  for (const BlockResult& result : results) {
    EXPECT_EQ(result.result, result.slot == 2 ? -EBADF : 4096) << result.slot;
  }
}

}  // namespace
}  // namespace penstock::aio
