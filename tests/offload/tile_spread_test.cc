#include "offload/tile_spread.h"

#include <gmock/gmock.h>

#include <cmath>
#include <numeric>
#include <set>

namespace penstock::offload {
namespace {

using ::testing::DoubleNear;
using ::testing::Each;
using ::testing::ElementsAre;

ShardLayout Tiles(const std::vector<uint64_t>& blocks) {
  ModelLayout model{.groups = DecayGroups(MakePlanes(DType::kBFloat16))};
  uint64_t largest = 1;
  for (const uint64_t count : blocks) {
    model.modules.push_back(
        MakeModule("module", {{.name = "weight", .shape = {count * kBlockElements}}}));
    largest = std::max(largest, count);
  }
  return MakeShard(std::move(model), largest * kBlockElements);
}

ShardLayout EqualTiles(size_t count) { return Tiles(std::vector<uint64_t>(count, 1)); }

TEST(TileSpreadTest, OnePathGetsEverything) {
  EXPECT_THAT(SpreadTiles(EqualTiles(5), std::vector<double>{3}), Each(0));
}

TEST(TileSpreadTest, EqualDrivesTakeTurns) {
  EXPECT_THAT(SpreadTiles(EqualTiles(6), std::vector<double>{2, 2}), ElementsAre(0, 1, 0, 1, 0, 1));
  EXPECT_THAT(SpreadTiles(EqualTiles(7), std::vector<double>{2, 2, 2}),
              ElementsAre(0, 1, 2, 0, 1, 2, 0));
}

TEST(TileSpreadTest, AFasterDriveIsInterruptedByTheSlowerOneEvenly) {
  EXPECT_THAT(SpreadTiles(EqualTiles(8), std::vector<double>{3, 1}),
              ElementsAre(0, 0, 1, 0, 0, 0, 1, 0));
}

TEST(TileSpreadTest, AfterEveryTileEachPathIsAtMostOneTileAheadOfItsShare) {
  std::vector<uint64_t> blocks;
  for (uint64_t i = 0; i < 500; ++i) blocks.push_back(1 + i * i % 17);
  const ShardLayout layout = Tiles(blocks);
  for (const std::vector<double>& speeds : std::vector<std::vector<double>>{
           {1, 1}, {2.5e9, 0.85e9}, {7, 5, 3}, {100, 1}, {4, 3, 2, 1}}) {
    const std::vector<uint16_t> paths = SpreadTiles(layout, speeds);
    const double total = std::accumulate(speeds.begin(), speeds.end(), 0.0);
    std::vector<double> on(speeds.size(), 0);
    double all = 0;
    for (size_t i = 0; i < paths.size(); ++i) {
      const auto elements = static_cast<double>(layout.tiles[i].elements);
      on.at(paths[i]) += elements;
      all += elements;
      EXPECT_LT(on[paths[i]] - all * speeds[paths[i]] / total, 17 * kBlockElements);
    }
    for (size_t path = 0; path < speeds.size(); ++path) {
      EXPECT_NEAR(on[path] / all, speeds[path] / total, 0.01) << path;
    }
  }
}

TEST(HostTileOrderTest, AnyNumberOfTilesIsSpreadEvenlyOverTheModelAndItsDrives) {
  constexpr size_t kTiles = 1000;
  const ShardLayout layout = EqualTiles(kTiles);
  const std::vector<TileId> order = HostTileOrder(layout);
  EXPECT_EQ(std::set<TileId>(order.begin(), order.end()).size(), kTiles);
  for (const size_t held : {100U, 250U, 333U, 500U, 900U}) {
    const double share = static_cast<double>(held) / kTiles;
    std::vector<double> of_drive(4);
    std::vector<double> of_stretch(10);
    for (size_t i = 0; i < held; ++i) {
      ++of_drive[Index(order[i]) % 4];
      ++of_stretch[Index(order[i]) / 100];
    }
    EXPECT_THAT(of_drive, Each(DoubleNear(250 * share, 4))) << held;
    EXPECT_THAT(of_stretch, Each(DoubleNear(100 * share, 3))) << held;
  }
}

}  // namespace
}  // namespace penstock::offload
