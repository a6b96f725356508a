#include "zero/plan/gradient_batches.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/zero/toy_model.h"
#include "zero/plan/partitioner.h"
#include "zero/plan/staging_ring.h"

namespace penstock::zero {
namespace {

using offload::GroupId;
using offload::Index;
using offload::ModuleId;
using offload::ShardLayout;
using offload::TileId;

constexpr ModuleId kModule{0};

/// One module whose tensors have bf16, fp32 and frozen weights; tiles of a block, eleven in all.
ShardLayout MixedLayout() {
  ModelSpec model;
  model.groups = {{.name = "bf16", .weight = DType::kBFloat16},
                  {.name = "fp32", .weight = DType::kFloat32},
                  {.name = "frozen", .frozen = true}};
  model.modules = {{.name = "mixed",
                    .tensors = {{"a", {5 * kBlockElements}, GroupId{0}},
                                {"b", {4 * kBlockElements}, GroupId{1}},
                                {"c", {2 * kBlockElements}, GroupId{2}}}}};
  config::Config config;
  config.tile_elements = kBlockElements;
  return MakeLayout(model, config);
}

/// Tiles of each batch.
std::vector<size_t> Counts(const std::vector<GradientBatch>& batches) {
  std::vector<size_t> counts;
  for (const GradientBatch& batch : batches) counts.push_back(batch.tiles.size());
  return counts;
}

TEST(GradientBatchesTest, EveryTrainedTileGoesOnceAndInOrder) {
  const ShardLayout layout = MixedLayout();
  uint32_t next = 0;
  for (const GradientBatch& batch : GradientBatches(layout, kModule, 20_KiB)) {
    uint64_t elements = 0;
    for (const TileId tile : batch.tiles) {
      EXPECT_EQ(Index(tile), next++);
      EXPECT_EQ(layout.tile(tile).begin, batch.begin + elements);
      EXPECT_EQ(layout.GradientDType(tile), batch.dtype);
      elements += layout.tile(tile).elements;
    }
    EXPECT_EQ(elements, batch.elements);
  }
  EXPECT_EQ(next, layout.TrainedTilesOf(kModule).size());
  EXPECT_EQ(layout.TrainedTilesOf(kModule).size() + 2, layout.TilesOf(kModule).size());
}

TEST(GradientBatchesTest, ABatchIsAsLargeAsItMayBeAndHasOneDType) {
  // 8 KiB a tile in bf16, 16 KiB in fp32.
  const ShardLayout layout = MixedLayout();
  EXPECT_EQ(Counts(GradientBatches(layout, kModule, 1_MiB)), (std::vector<size_t>{5, 4}));
  EXPECT_EQ(Counts(GradientBatches(layout, kModule, 32_KiB)), (std::vector<size_t>{4, 1, 2, 2}));
  EXPECT_EQ(Counts(GradientBatches(layout, kModule, 31_KiB)),
            (std::vector<size_t>{3, 2, 1, 1, 1, 1}));
}

TEST(GradientBatchesTest, ATileThatIsTooLargeGoesAlone) {
  const ShardLayout layout = MixedLayout();
  EXPECT_EQ(Counts(GradientBatches(layout, kModule, 1_KiB)), std::vector<size_t>(9, 1));
}

TEST(GradientBatchesTest, ARanksTilesGoTogetherWhereverTheyLieInTheModule) {
  // Two sections of four blocks each, of which each of two ranks holds two: they lie one behind the
  // other in the rank's sums.
  offload::ModelLayout model;
  model.groups = {
      {.name = "momentum", .planes = offload::MakePlanes(DType::kBFloat16, {.exp_avg_sq = false})},
      {.name = "adam", .planes = offload::MakePlanes(DType::kBFloat16)}};
  model.modules = {offload::MakeModule(
      "m", {{"a", {4 * kBlockElements}, GroupId{0}}, {"b", {4 * kBlockElements}, GroupId{1}}})};
  const auto batches_of = [&](uint32_t world_size, uint32_t rank) {
    return Counts(
        GradientBatches(offload::MakeShard(model, kBlockElements, world_size, rank), kModule));
  };
  EXPECT_EQ(batches_of(1, 0), std::vector<size_t>{8});
  EXPECT_EQ(batches_of(2, 0), std::vector<size_t>{4});
  EXPECT_EQ(batches_of(2, 1), std::vector<size_t>{4});
}

TEST(GradientBatchesTest, TheSmallestStagingHoldsTwoOfTheLargestBatch) {
  EXPECT_EQ(LeastGradientStaging(MixedLayout()), 2 * 4 * 16_KiB);

  ModelSpec model = ToySpec(2, 1'000'000);
  config::Config config;
  config.tile_elements = kBlockElements;
  EXPECT_EQ(LeastGradientStaging(MakeLayout(model, config)), 2 * 256_KiB);
  config.tile_elements = 1 << 18;  // of fp32
  EXPECT_EQ(LeastGradientStaging(MakeLayout(model, config)), 2 * 1_MiB);
}

TEST(GradientBatchesTest, TheStagingOfALayerHoldsAnyRepeatedModuleWhole) {
  const ModelSpec model = ToySpec(2, 1'000'000);
  config::Config config;
  config.tile_elements = kBlockElements;
  const ShardLayout layout = MakeLayout(model, config);
  const Bytes staging = LayerGradientStaging(model, layout);
  EXPECT_GE(staging, Bytes{2 * 1'000'000}) << "a layer, rounded";
  for (const ModuleId module : offload::Ids<ModuleId>(model.modules.size())) {
    EXPECT_EQ(StageModule(layout, module, staging).size(), 1U);
  }
  EXPECT_GT(StageModule(layout, ModuleId{1}, staging - 512_B).size(), 1U);
}

TEST(GradientBatchesTest, AModuleThatDoesNotFitGoesInPiecesOfHalfTheStaging) {
  const ShardLayout layout = MixedLayout();
  for (Bytes staging = LeastGradientStaging(layout); staging < 200_KiB; staging += 512_B) {
    uint32_t next = 0;
    const std::vector<StagedBatches> parts = StageModule(layout, kModule, staging);
    for (const StagedBatches& staged : parts) {
      EXPECT_LE(staged.size, parts.size() == 1 ? staging : Bytes{staging.value / 2});
      for (const GradientBatch& batch : staged.batches) {
        for (const GradientBatch& cut : CutBatch(layout, batch, 20_KiB)) {
          for (const TileId tile : cut.tiles) EXPECT_EQ(Index(tile), next++);
        }
      }
    }
    EXPECT_EQ(next, 9U) << "every tile once and in order";
  }
}

/// What lies in the ring is not written over before a wait for its copy, for sizes of all kinds.
TEST(StagingRingTest, WhatIsReservedWaitsForAllThatLiesThereAndForNothingThatHasLeft) {
  const Bytes size{100};
  StagingRing<int> ring(size);
  std::vector<int> of_byte(size.value, -1);
  int ended = -1;  // the newest copy that was waited for; with it all before it
  uint64_t random = 1;
  size_t waits = 0;
  for (int copy = 0; copy < 10000; ++copy) {
    random = random * 6364136223846793005 + 1442695040888963407;
    const Bytes take{1 + (random >> 33) % size.value};
    const auto room = ring.Reserve(take);
    ASSERT_LE(room.begin + take, size);
    int newest = -1;
    for (uint64_t i = 0; i < take.value; ++i) {
      newest = std::max(newest, of_byte[room.begin.value + i]);
      of_byte[room.begin.value + i] = copy;
    }
    ASSERT_EQ(room.free.value_or(ended) >= newest, true) << "written over";
    if (room.free) {
      ASSERT_EQ(*room.free, newest) << "a wait for a copy that is not in the way";
      ASSERT_GT(*room.free, ended) << "a second wait for the same copy";
      ended = *room.free;
      ++waits;
    }
    ring.Take(take, copy);
  }
  EXPECT_GT(waits, 1000U);
}

TEST(StagingRingTest, ModulesOfTheSizeOfTheRingWaitOnceEach) {
  StagingRing<int> ring(64_KiB);
  EXPECT_FALSE(ring.Reserve(64_KiB).free);
  ring.Take(64_KiB, 0);
  for (int copy = 1; copy < 5; ++copy) {
    EXPECT_EQ(ring.Reserve(64_KiB).free, copy - 1);
    ring.Take(64_KiB, copy);
  }
}

}  // namespace
}  // namespace penstock::zero
