#include "offload/layout.h"

#include <gmock/gmock.h>

#include <utility>
#include <vector>

namespace penstock::offload {
namespace {

using ::testing::ElementsAre;

constexpr GroupId kHalf{1};
constexpr GroupId kFrozen{2};

/// bf16, fp16 and frozen fp32 tensors; the sections of module "a" have 3, 2 and 4 blocks.
ModelLayout MixedModel() {
  return {.groups = {{.name = "bf16", .planes = MakePlanes(DType::kBFloat16)},
                     {.name = "fp16", .planes = MakePlanes(DType::kFloat16), .parameter_group = 1},
                     {.name = "frozen",
                      .planes = MakeFrozenPlanes(DType::kFloat32),
                      .frozen = true,
                      .parameter_group = 1}},
          .modules = {MakeModule("a", {{"a.frozen", {4, 4096}, kFrozen},
                                       {"a.half", {4097}, kHalf},
                                       {"a.first", {8192}, kDecay},
                                       {"a.second", {1}, kDecay}}),
                      MakeModule("b", {{"b.frozen", {7}, kFrozen}})},
          .parameters = 4 * 4096 + 4097 + 8193 + 7};
}

/// Of each tile of a rank: module, first block and blocks.
std::vector<std::vector<uint64_t>> TilesOf(const ShardLayout& shard) {
  std::vector<std::vector<uint64_t>> tiles;
  for (const TileLayout& tile : shard.tiles) {
    tiles.push_back(
        {Index(tile.module), tile.begin / kBlockElements, tile.elements / kBlockElements});
  }
  return tiles;
}

TEST(PlanesTest, APlaneTakesWholePagesForBlocksOfAnySize) {
  const Plane plane = MakeBlockwise8Plane(PlaneRole::kExpAvg);
  EXPECT_EQ(plane.block, 4160_B);
  EXPECT_EQ(plane.Size(1 * kBlockElements), 8_KiB);
  EXPECT_EQ(plane.Size(63 * kBlockElements), 64 * 4_KiB);
  EXPECT_EQ(plane.Size(64 * kBlockElements), 65 * 4_KiB);
  EXPECT_EQ(MakePlane(PlaneRole::kLo, Encoding::kInt16).Size(3 * kBlockElements), 24_KiB);
}

TEST(PlanesTest, AWeightHasTheMasterThatItsDtypeNeedsAndNoOther) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    const Planes planes = MakePlanes(dtype);
    EXPECT_TRUE(CanBe(planes, /*frozen=*/false));
    EXPECT_FALSE(CanBe(planes, /*frozen=*/true));
    EXPECT_TRUE(CanBe(MakeFrozenPlanes(dtype), /*frozen=*/true));
    EXPECT_EQ(planes.Find(PlaneRole::kLo) != nullptr, dtype == DType::kBFloat16);
    EXPECT_EQ(planes.Find(PlaneRole::kMaster) != nullptr, dtype == DType::kFloat16);
  }
  const Plane half = MakePlane(PlaneRole::kWeight, Encoding::kFloat16);
  const Plane lo = MakePlane(PlaneRole::kLo, Encoding::kInt16);
  const Plane master = MakePlane(PlaneRole::kMaster, Encoding::kFloat32);
  EXPECT_FALSE(CanBe({half}, false));
  EXPECT_FALSE(CanBe({half, lo}, false));
  EXPECT_FALSE(CanBe({MakePlane(PlaneRole::kWeight, Encoding::kFloat32), master}, false));
  EXPECT_FALSE(CanBe({MakePlane(PlaneRole::kWeight, Encoding::kBFloat16), lo, master}, false));
  EXPECT_FALSE(CanBe({MakePlane(PlaneRole::kWeight, Encoding::kInt16), master}, false));
}

TEST(LayoutTest, GroupsFollowEachOtherPaddedAndFrozenOnesComeLast) {
  const ModelLayout model = MixedModel();
  const ModuleLayout& a = model.module(ModuleId{0});
  EXPECT_EQ(a.tensors[2].offset, 0);
  EXPECT_EQ(a.tensors[3].offset, 8192);
  EXPECT_EQ(a.tensors[1].offset, 3 * kBlockElements);
  EXPECT_EQ(a.tensors[0].offset, 5 * kBlockElements);
  EXPECT_EQ(a.elements, 9 * kBlockElements);
  EXPECT_EQ(model.TrainedElements(ModuleId{0}), 5 * kBlockElements);
  EXPECT_EQ(model.TrainedElements(ModuleId{1}), 0);
}

TEST(LayoutTest, GroupsThatAreStoredAlikeFormOneSection) {
  ModelLayout model{.groups = DecayGroups(MakePlanes(DType::kBFloat16)),
                    .modules = {MakeModule("a", {{"w", {5000}, kDecay}, {"b", {3}, kNoDecay}})}};
  ASSERT_EQ(model.SectionsOf(ModuleId{0}).size(), 1);
  EXPECT_EQ(model.SectionsOf(ModuleId{0})[0].range.elements, 3 * kBlockElements);
  EXPECT_EQ(MixedModel().SectionsOf(ModuleId{0}).size(), 3);
}

TEST(LayoutTest, EachRankHasAnEqualShareOfEachSection) {
  const ModelLayout model = MixedModel();
  EXPECT_THAT(TilesOf(MakeShard(model, 2 * kBlockElements, 3, 0)),
              ElementsAre(ElementsAre(0, 0, 1), ElementsAre(0, 3, 1), ElementsAre(0, 5, 2),
                          ElementsAre(1, 0, 1)));
  EXPECT_THAT(TilesOf(MakeShard(model, 2 * kBlockElements, 3, 1)),
              ElementsAre(ElementsAre(0, 1, 1), ElementsAre(0, 4, 1), ElementsAre(0, 7, 2)));
  EXPECT_THAT(TilesOf(MakeShard(model, 2 * kBlockElements, 3, 2)),
              ElementsAre(ElementsAre(0, 2, 1)));
}

TEST(LayoutTest, TheSharesOfAllRanksCoverEveryElementOnce) {
  const ModelLayout model = MixedModel();
  for (const uint32_t world_size : {1U, 2U, 3U, 4U, 7U, 64U}) {
    std::vector<std::vector<int>> holders = {std::vector<int>(9), std::vector<int>(1)};
    for (uint32_t rank = 0; rank < world_size; ++rank) {
      const ShardLayout shard = MakeShard(model, 2 * kBlockElements, world_size, rank);
      EXPECT_EQ(shard.tiles.size(), CountTiles(model, 2 * kBlockElements, world_size, rank));
      for (const TileLayout& tile : shard.tiles) {
        for (uint64_t block = 0; block < tile.elements / kBlockElements; ++block) {
          ++holders[Index(tile.module)][tile.begin / kBlockElements + block];
          const uint64_t last = tile.begin + (block + 1) * kBlockElements - 1;
          EXPECT_EQ(model.RankAt(tile.module, last, world_size), rank);
        }
      }
    }
    for (const auto& module : holders) EXPECT_THAT(module, ::testing::Each(1)) << world_size;
  }
}

TEST(LayoutTest, InASlotTheSharesOfASectionAreEquallyLong) {
  const ShardLayout one = MakeShard(MixedModel(), kBlockElements);
  const ModuleId a{0};
  EXPECT_EQ(one.SlotOffset(a, 3 * kBlockElements), 3 * 8_KiB);
  EXPECT_EQ(one.SlotOffset(a, 3 * kBlockElements + 5), 3 * 8_KiB + 10_B);
  EXPECT_EQ(one.SlotOffset(a, 5 * kBlockElements + 5), 5 * 8_KiB + 20_B);
  EXPECT_EQ(one.SlotBytes(a), 5 * 8_KiB + 4 * 16_KiB);
  const ShardLayout two = MakeShard(MixedModel(), kBlockElements, 2, 1);
  EXPECT_EQ(two.SlotOffset(a, 3 * kBlockElements), 4 * 8_KiB) << "the last share is as long";
  EXPECT_EQ(two.SlotBytes(a), 6 * 8_KiB + 4 * 16_KiB);
}

TEST(LayoutTest, AFrozenTileHasNeitherRecordNorGradient) {
  const ShardLayout shard = MakeShard(MixedModel(), 2 * kBlockElements);
  for (const TileId tile : shard.Tiles()) {
    EXPECT_EQ(shard.RecordBytes(tile) == 0_B, shard.frozen(tile));
    EXPECT_EQ(shard.GradientBytes(tile) == 0_B, shard.frozen(tile));
    EXPECT_EQ(shard.TileAt(shard.tile(tile).module, shard.tile(tile).begin + 4095), tile);
  }
}

}  // namespace
}  // namespace penstock::offload
