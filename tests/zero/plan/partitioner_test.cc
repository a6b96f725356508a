#include "zero/plan/partitioner.h"

#include <gtest/gtest.h>

#include "tests/zero/toy_model.h"
#include "zero/gradient_norm.h"

namespace penstock::zero {
namespace {

using offload::ShardLayout;

TEST(ShareTest, ShardsOfAnyWorldSizeCoverTheIndexExactlyAndEndOnBlocks) {
  for (uint64_t blocks : {0, 1, 2, 7, 64, 1000}) {
    for (uint32_t world : {1, 2, 3, 8, 64, 1001}) {
      uint64_t next = 0;
      for (uint32_t rank = 0; rank < world; ++rank) {
        const offload::Range shard =
            offload::ShareOf({.elements = blocks * kBlockElements}, world, rank);
        EXPECT_EQ(shard.begin, next);
        EXPECT_EQ(shard.elements % kBlockElements, 0);
        EXPECT_LE(shard.elements, (blocks / world + 1) * kBlockElements);
        next += shard.elements;
      }
      EXPECT_EQ(next, blocks * kBlockElements);
    }
  }
}

TEST(LayoutTest, EveryElementOfEveryTensorLiesInOneTileOfItsGroup) {
  for (uint64_t tile_elements : {4096, 8192, 1 << 20}) {
    const ModelSpec model = ToySpec(2, 30001);
    const ShardLayout layout = MakeLayout(model, DType::kBFloat16, tile_elements);
    for (const ModuleId id : offload::Ids<ModuleId>(layout.model.modules.size())) {
      const offload::ModuleLayout& module = layout.module(id);
      uint64_t covered = 0;
      for (const offload::TileId of_module : layout.TilesOf(id)) {
        const offload::TileLayout& tile = layout.tile(of_module);
        EXPECT_EQ(tile.begin, covered);
        EXPECT_EQ(tile.elements % kBlockElements, 0);
        EXPECT_LE(tile.elements, tile_elements);
        covered += tile.elements;
        for (const offload::TensorLayout& tensor : module.tensors) {
          const bool overlaps = tensor.offset < tile.begin + tile.elements &&
                                tensor.offset + tensor.elements > tile.begin;
          EXPECT_TRUE(!overlaps || tensor.group == tile.group) << tensor.name;
        }
      }
      EXPECT_EQ(covered, module.elements);
    }
    EXPECT_EQ(layout.model.parameters, 100 * 50 + 2 * (37 + 30001) + 64);
  }
}

TEST(LayoutTest, TensorsWithDecayComeFirstInTheOrderTheyWereDeclared) {
  const ShardLayout layout = MakeLayout(ToySpec(1, 5000), DType::kFloat32, 8192);
  const offload::ModuleLayout& layer = layout.model.modules[1];
  EXPECT_EQ(layer.tensors[0].name, "layer.0.bias");
  EXPECT_EQ(layer.tensors[0].group, offload::kNoDecay);
  EXPECT_EQ(layer.tensors[0].offset, 8192);
  EXPECT_EQ(layer.tensors[1].offset, 0);
  EXPECT_EQ(layer.elements, 8192 + 4096);
}

TEST(GradientNormTest, IsTheSameForEveryTileSizeAndOrderOfArrival) {
  std::vector<double> norms;
  for (uint64_t tile_elements : {4096, 12288, 1 << 20}) {
    const ShardLayout layout = MakeLayout(ToySpec(3, 50000), DType::kBFloat16, tile_elements);
    GradientNorm norm(layout);
    uint64_t block = layout.shard_elements() / kBlockElements;
    for (size_t i = layout.tiles.size(); i-- > 0;) {
      const auto sums = norm.Sums(offload::TileId{static_cast<uint32_t>(i)});
      for (size_t j = sums.size(); j-- > 0;) sums[j] = 1.0 / static_cast<double>(1 + 3 * --block);
      norm.Arrived(true);
    }
    const auto value = norm.Wait();
    EXPECT_TRUE(value.finite);
    norms.push_back(value.norm);
  }
  EXPECT_EQ(norms[0], norms[1]);
  EXPECT_EQ(norms[0], norms[2]);
}

TEST(GradientNormTest, OneTileThatIsNotFiniteMakesTheStepNotFiniteAndTheNextOneStartsAfresh) {
  const ShardLayout layout = MakeLayout(ToySpec(1, 5000), DType::kBFloat16, 4096);
  GradientNorm norm(layout);
  for (size_t i = 0; i < layout.tiles.size(); ++i) norm.Arrived(i != 1);
  EXPECT_FALSE(norm.Wait().finite);
  for (size_t i = 0; i < layout.tiles.size(); ++i) norm.Arrived(true);
  EXPECT_TRUE(norm.Wait().finite);
}

TEST(TileCountTest, TilesTooSmallForTheModelAreRefusedWithASizeThatWorks) {
  // Its tiles are counted, not made: as a list they would take 256 GiB.
  const ModelSpec model = ToySpec(1, uint64_t{1} << 45);
  config::Config config;
  config.tile_elements = kBlockElements;
  const Status status = CheckTileCount(model, config);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kBudget);
  EXPECT_NE(status.error().message.find("give 67108864"), std::string::npos)
      << status.error().message;
  config.tile_elements = uint64_t{1} << 26;
  EXPECT_TRUE(CheckTileCount(model, config).ok());
}

TEST(TileCountTest, AsManyAsCanBeAreAccepted) {
  // Of the other tensors there are four tiles.
  const uint64_t most = (kMaxTiles - 4) * kBlockElements;
  config::Config config;
  config.tile_elements = kBlockElements;
  const ModelSpec model = ToySpec(1, most);
  ASSERT_TRUE(CheckTileCount(model, config).ok());
  EXPECT_EQ(MakeLayout(model, config).tiles.size(), kMaxTiles);
  EXPECT_FALSE(CheckTileCount(ToySpec(1, most + 1), config).ok());
}

}  // namespace
}  // namespace penstock::zero
