#include "zero/gradient_batches.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/zero/toy_model.h"
#include "zero/partitioner.h"

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

TEST(GradientBatchesTest, AStagingBufferHoldsTheLargestBatch) {
  EXPECT_EQ(GradientStagingBytes(MixedLayout()), 4 * 16_KiB);

  ModelSpec model = ToySpec(2, 1'000'000);
  config::Config config;
  config.tile_elements = kBlockElements;
  EXPECT_EQ(GradientStagingBytes(MakeLayout(model, config)), 256_KiB);
  config.tile_elements = 1 << 18;  // of fp32
  EXPECT_EQ(GradientStagingBytes(MakeLayout(model, config)), 1_MiB);
}

}  // namespace
}  // namespace penstock::zero
