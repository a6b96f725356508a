// What a rank of several keeps, reads, writes and sends, and in which order.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <future>
#include <string>
#include <vector>

#include "tests/zero/engine/ranks_support.h"

namespace penstock::zero {
namespace {

TEST_F(RanksTest, GradientsThatAreRoundedTakeHalfTheBytesOnTheirWay) {
  const auto exchanged = [this](DType dtype) {
    const Case c{.name = "nvme", .communication = dtype};
    const auto outcomes =
        ForEachRank(c, 2, [&](Rank& rank) { return Compute(rank, 1, {}).status(); });
    for (const Status& outcome : outcomes) EXPECT_TRUE(outcome.ok()) << outcome.error().message;
    return listed_[0].exchanged;
  };
  const Bytes exact = exchanged(DType::kFloat32);
  EXPECT_GT(exact, 0_B);
  EXPECT_EQ(exchanged(DType::kBFloat16) * 2, exact);
}

/// Bytes of a rank's share of the state, and of what lies around it in its file.
struct FileBytes {
  uint64_t share = 0;
  uint64_t around = 0;
};

FileBytes FileBytesOf(Session& session) {
  const offload::ShardLayout& layout = session.layout();
  const uint64_t share = (layout.weight_bytes() + layout.record_bytes()).value;
  uint64_t size = 0;
  for (const std::string& path : session.state_paths()) size += std::filesystem::file_size(path);
  EXPECT_GE(size, 2 * share) << "two slots";
  return {.share = share, .around = size - 2 * share};
}

TEST_F(RanksTest, ARankKeepsAndMovesItsShareAndStaysWithinItsBudgets) {
  constexpr uint64_t kMeasured = 8;
  constexpr double kElements = 5000 + 3 * (60000 + 37) + 64;
  FileBytes whole;
  for (const uint32_t ranks : {1U, 3U, 4U}) {
    // Gradients and a few blocks: not enough to keep the states.
    const Case c{
        .name = "nvme", .with_gradients = true, .layer_elements = 60000, .more_host = 400_KiB};
    std::vector<FileBytes> files(ranks);
    const auto outcomes = ForEachRank(c, ranks, [&](Rank& rank) -> Status {
      files[rank.rank] = FileBytesOf(*rank.session);
      EngineCounters before;
      for (uint64_t step = 1; step <= kMeasured + 2; ++step) {
        PENSTOCK_TRY(Compute(rank, step, {}).status());
        PENSTOCK_TRY(rank.session->Drain());
        if (step == 2) before = rank.session->counters();
      }
      const EngineCounters after = rank.session->counters();
      // A rank has up to a block more than its part of each module.
      const double mine = static_cast<double>(rank.session->layout().shard_elements());
      EXPECT_LE(mine, kElements / rank.ranks + 6 * kBlockElements);
      const auto read = static_cast<double>(after.nvme_read_bytes - before.nvme_read_bytes);
      const auto written = static_cast<double>(after.nvme_write_bytes - before.nvme_write_bytes);
      EXPECT_LE(read / mine / kMeasured, 14.2) << rank.rank << " of " << rank.ranks;
      EXPECT_LE(written / mine / kMeasured, 12.2) << rank.rank << " of " << rank.ranks;
      EXPECT_LE(rank.device->peak(), rank.device->limit());
      EXPECT_LE(rank.session->host_peak(), rank.host_memory);
      return {};
    });
    uint64_t together = 0;
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      ASSERT_TRUE(outcomes[rank].ok()) << outcomes[rank].error().message;
      together += files[rank].share;
    }
    if (ranks == 1) whole = files[0];
    EXPECT_EQ(together, whole.share) << ranks;
    for (const FileBytes& file : files) EXPECT_LE(file.around, whole.around) << ranks;
  }
}

TEST_F(RanksTest, BackwardGathersTheNextModuleBeforeItExchangesTheGradientOfThisOne) {
  const Case c{.name = "two slots", .room = Room::kTwoSlots};
  const auto outcomes =
      ForEachRank(c, 3, [](Rank& rank) -> Status { return Compute(rank, 1, {}).status(); });
  for (const Status& outcome : outcomes) ASSERT_TRUE(outcome.ok()) << outcome.error().message;
  for (const Operations& rank : listed_) EXPECT_EQ(rank.enqueued, listed_[0].enqueued);
  // Of three layers the first has gone when the step comes back to it.
  const std::vector<std::string>& operations = listed_[0].enqueued;
  const auto weights =
      std::ranges::find(operations.rbegin(), operations.rend(), "weights of layer.0");
  const auto before = std::ranges::find(operations, "gradient of layer.2");
  const auto behind = std::ranges::find(operations, "gradient of layer.1");
  ASSERT_TRUE(weights != operations.rend() && before != operations.end() &&
              behind != operations.end());
  EXPECT_LT(before, weights.base() - 1);
  EXPECT_LT(weights.base() - 1, behind);
}

TEST_F(RanksTest, AModuleIsGatheredWhileTheKernelsOfTheOneBeforeRun) {
  for (const Tier home : {Tier::kNvme, Tier::kDevice}) {
    const Case c{.name = "gather", .parameters = home, .optimizer = home, .room = Room::kAll};
    const auto outcomes = ForEachRank(c, 2, [this, home](Rank& rank) -> Status {
      PENSTOCK_TRY(Compute(rank, 1, {}).status());
      std::promise<void> gathered;
      std::atomic<bool> in_time = false;
      listed_[rank.rank].ended = [&](const std::string& what) {
        if (what == "weights of layer.0") gathered.set_value();
      };
      {
        PENSTOCK_ASSIGN(Step step, rank.session->BeginStep());
        PENSTOCK_TRY(step.Acquire(ModuleId{0}).status());
        auto& cpu = static_cast<device::CpuStream&>(step.compute_stream());
        cpu.Launch([&] {
          in_time =
              gathered.get_future().wait_for(std::chrono::seconds(60)) == std::future_status::ready;
        });
        PENSTOCK_TRY(step.Acquire(ModuleId{1}).status());
        PENSTOCK_TRY(step.Drop());
      }
      listed_[rank.rank].ended = [](const std::string&) {};
      EXPECT_TRUE(in_time) << ToString(home);
      return {};
    });
    for (const Status& outcome : outcomes) EXPECT_TRUE(outcome.ok()) << outcome.error().message;
  }
}

}  // namespace
}  // namespace penstock::zero
