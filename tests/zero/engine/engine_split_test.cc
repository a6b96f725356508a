// Tiles at home on nvme that live in host memory, as many as it holds.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "tests/zero/engine_support.h"
#include "zero/engine/engine.h"

namespace penstock::zero {
namespace {

using ::testing::HasSubstr;

struct Split {
  uint64_t host_tiles = 0;
  uint64_t tiles = 0;
  double percent = 0;
};

/// As the engine tells the user.
Split SplitOf(const Session& session) {
  Split split;
  for (const std::string& notice : session.notices()) {
    unsigned long host_tiles = 0;
    unsigned long tiles = 0;
    if (std::sscanf(notice.c_str(), "tier split: %lu of %lu tiles, %lf %%", &host_tiles, &tiles,
                    &split.percent) == 3) {
      split.host_tiles = host_tiles;
      split.tiles = tiles;
    }
  }
  EXPECT_GT(split.tiles, 0U) << "no notice";
  return split;
}

/// Room for some tiles beside the blocks that the drive is kept busy with.
Placement SomeAtHome(const std::string& name) {
  return {.name = name, .queue_depth = 1, .tier_split = true, .more_host = 1_MiB};
}

TEST_F(EngineTest, TilesInHostMemoryGiveTheSameBits) {
  for (const bool with_gradients : {false, true}) {
    for (const DType dtype : {DType::kBFloat16, DType::kFloat32}) {
      const Outcome reference = TrainAndRead({.name = "device",
                                              .dtype = dtype,
                                              .parameters = Tier::kDevice,
                                              .optimizer = Tier::kDevice,
                                              .with_gradients = with_gradients});
      std::vector<Placement> placements(7, SomeAtHome("some"));
      placements[1].parameters = Tier::kHost;
      placements[2].optimizer = Tier::kHost;
      placements[3].durable = false;
      placements[4].optimizer_threads = 2;
      placements[5].drives = {2, 1};
      placements[6].smallest_host = false;
      for (Placement& placement : placements) {
        placement.dtype = dtype;
        placement.with_gradients = with_gradients;
        ExpectSameBits(TrainAndRead(placement, 2), reference, placement.name);
      }
    }
  }
}

TEST_F(EngineTest, TheBytesOfAStepFallByTheShareThatLivesInHostMemory) {
  constexpr uint64_t kMeasured = 8;
  for (const Bytes more : {700_KiB, 1000_KiB, 1300_KiB}) {
    Placement placement = SomeAtHome("some");
    placement.more_host = more;
    ToyRun run(Options(placement), 64_MiB);
    ASSERT_TRUE(run.created().ok()) << run.created().error().message;
    ASSERT_TRUE(run.session().Initialize(ToyWeights).ok());
    const Split split = SplitOf(run.session());
    EXPECT_GT(split.host_tiles, 0U);
    EXPECT_LT(split.host_tiles, split.tiles);
    EngineCounters before;
    for (uint64_t step = 1; step <= kMeasured + 2; ++step) {
      ASSERT_TRUE(run.Step(step, 1).ok());
      ASSERT_TRUE(run.session().Drain().ok());
      if (step == 2) before = run.session().counters();
    }
    const EngineCounters after = run.session().counters();
    const double on_nvme = (1 - split.percent / 100) *
                           static_cast<double>(run.session().layout().model.elements() * kMeasured);
    const auto read = static_cast<double>(after.nvme_read_bytes - before.nvme_read_bytes);
    const auto written = static_cast<double>(after.nvme_write_bytes - before.nvme_write_bytes);
    EXPECT_NEAR(written / on_nvme, 12, 0.1) << split.percent;
    EXPECT_LE(read / on_nvme, 16.5) << split.percent;
    EXPECT_GE(read / on_nvme, 9.5) << split.percent;
  }
}

TEST_F(EngineTest, WhereEverythingFitsNothingIsReadAndOnlyCommitsWrite) {
  Placement placement = SomeAtHome("all");
  placement.smallest_host = false;
  ToyRun run(Options(placement), 64_MiB);
  ASSERT_TRUE(run.created().ok()) << run.created().error().message;
  ASSERT_TRUE(run.session().Initialize(ToyWeights).ok());
  const Split split = SplitOf(run.session());
  EXPECT_EQ(split.host_tiles, split.tiles);
  for (uint64_t step = 1; step <= 3; ++step) ASSERT_TRUE(run.Step(step, 1).ok());
  Commit(run, 3, 3);
  const EngineCounters counters = run.session().counters();
  EXPECT_EQ(counters.nvme_read_bytes, 0U);
  EXPECT_EQ(counters.nvme_write_bytes, 0U);
  EXPECT_GE(counters.nvme_commit_bytes, 12 * run.session().layout().model.elements());
}

TEST_F(EngineTest, WithoutTheSplitNoTileLivesInHostMemoryAndTheNoticeSaysWhy) {
  Placement placement = SomeAtHome("off");
  placement.tier_split = false;
  ToyRun run(Options(placement), 64_MiB);
  ASSERT_TRUE(run.created().ok());
  EXPECT_EQ(SplitOf(run.session()).host_tiles, 0U);
  EXPECT_THAT(run.session().notices(),
              ::testing::Contains(HasSubstr("penstock.tier_split is off")));
}

}  // namespace
}  // namespace penstock::zero
