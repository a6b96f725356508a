#include "zero/states/tile_planes.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/offload/support.h"

namespace penstock::zero {
namespace {

using offload::TileId;

TEST(TilePlanesTest, ViewsBeginAtTheElementThatIsAskedForInEveryPlane) {
  const offload::ShardLayout layout = offload::SmallLayout(DType::kBFloat16);
  const uint64_t elements = layout.tile(TileId{0}).elements;
  std::vector<std::byte> weight(layout.WeightBytes(TileId{0}).value);
  std::vector<std::byte> record(layout.RecordBytes(TileId{0}).value);
  const std::vector<std::byte> gradient(layout.GradientBytes(TileId{0}).value);
  for (const uint64_t begin : {uint64_t{0}, elements / 2}) {
    const kernels::OptimizerTile views =
        PlanesOf(layout, TileId{0}, weight.data(), record.data(), gradient.data(), begin, 100);
    EXPECT_EQ(views.weight.data(), weight.data() + 2 * begin);
    EXPECT_EQ(views.weight.size(), 100U);
    EXPECT_EQ(views.lo.data(), record.data() + 2 * begin);
    EXPECT_EQ(views.exp_avg.data(), record.data() + 2 * elements + 4 * begin);
    EXPECT_EQ(views.exp_avg_sq.data(), record.data() + 6 * elements + 4 * begin);
    EXPECT_TRUE(views.master.empty());
    EXPECT_EQ(views.gradient, gradient.data() + 2 * begin);
  }
}

TEST(TilePlanesTest, WhereThereIsNoGradientThereIsNoneAtAnyElement) {
  const offload::ShardLayout layout = offload::SmallLayout(DType::kBFloat16);
  std::vector<std::byte> weight(layout.WeightBytes(TileId{0}).value);
  std::vector<std::byte> record(layout.RecordBytes(TileId{0}).value);
  EXPECT_EQ(PlanesOf(layout, TileId{0}, weight.data(), record.data(), nullptr, 4096, 100).gradient,
            nullptr);
}

TEST(TilePlanesTest, AFrozenTileHasAWeightAndNeedsNoRecord) {
  offload::ModelLayout model = offload::SmallLayout(DType::kBFloat16).model;
  model.groups[1].planes = offload::MakeFrozenPlanes(DType::kBFloat16);
  model.groups[1].frozen = true;
  const offload::ShardLayout layout = offload::MakeShard(std::move(model), 8192);
  const TileId frozen{2};
  ASSERT_TRUE(layout.frozen(frozen));
  std::vector<std::byte> weight(layout.WeightBytes(frozen).value);
  const kernels::OptimizerTile views =
      PlanesOf(layout, frozen, weight.data(), nullptr, nullptr, 64, 100);
  EXPECT_EQ(views.weight.data(), weight.data() + 128);
  EXPECT_TRUE(views.exp_avg.empty() && views.lo.empty() && views.master.empty());
}

}  // namespace
}  // namespace penstock::zero
