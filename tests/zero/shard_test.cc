// What one rank of several holds: filled, updated and read back, against a rank that holds all.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <vector>

#include "offload/state_names.h"
#include "offload/state_reader.h"
#include "offload/tile_store.h"
#include "tests/offload/await_update.h"
#include "tests/zero/states/committed_blocks.h"
#include "tests/zero/toy_model.h"
#include "zero/plan/partitioner.h"
#include "zero/plan/schedule_builder.h"
#include "zero/states/tile_planes.h"
#include "zero/update_scalars.h"

namespace penstock::zero {
namespace {

using offload::ShardLayout;
using offload::TileId;

/// A gradient that depends on where it stands.
std::vector<kernels::BFloat16> GradientOf(const offload::TileLayout& tile) {
  std::vector<kernels::BFloat16> gradient(tile.elements);
  for (uint64_t i = 0; i < tile.elements; ++i) {
    const uint64_t at = tile.begin + i + 3 * offload::Index(tile.module);
    gradient[i] = kernels::RoundToBFloat16(0.01F * static_cast<float>(at % 97) - 0.3F);
  }
  return gradient;
}

class ShardTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(::testing::TempDir()) / fmt::format("shard.{}", ::getpid());
    std::filesystem::create_directory(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  /// Masters and moments of every block after two updates, by module and first element.
  CommittedBlocks Train(const ShardLayout& layout) {
    auto engine = aio::CreateEngine({.kind = aio::EngineKind::kThreads}).value();
    aio::Engine* const engines[] = {engine.get()};
    const auto file = offload::StateFile::Create(layout, {.folders = {folder_}}, engines).value();
    auto slab = offload::Slab::Create(16_MiB).value();
    const offload::Schedule schedule = BuildSchedule(model_, layout, 1, UpdateStart::kStepEnd);
    // Nobody pins: blocks that are read ahead for the device stay.
    offload::TileStore store(layout, schedule,
                             {.weight_blocks = layout.tiles.size() + 2, .record_blocks = 1}, slab,
                             *file);
    const TileFill fill = FillFromTensors(layout, ToyWeights, 0);
    for (const TileId tile : layout.Tiles()) {
      EXPECT_TRUE(
          store.FillTile(tile, [&](auto weight, auto record) { return fill(tile, weight, record); })
              .ok());
    }
    EXPECT_TRUE(store.Drain().ok());
    store.SetTime(0);
    for (uint64_t t = 1; t <= 2; ++t) Update(layout, store, t);
    EXPECT_TRUE(store
                    .Commit({.head = {.step = 2, .optimizer_steps = 2}, .json = "{}"},
                            [] { return Status(); })
                    .ok());
    const auto paths = offload::StatePathsIn({folder_}, file->uuid(), layout.rank);
    EXPECT_EQ(offload::StateReader::Open(paths, offload::StateLock::kHeld).value()->layout(),
              layout);
    return ReadBlocks(paths);
  }

 private:
  void Update(const ShardLayout& layout, offload::TileStore& store, uint64_t t) {
    const UpdateScalars scalars(model_.groups, {}, 5, 1e-2, t, 1);
    EXPECT_TRUE(store.PrepareUpdates().ok());
    store.BeginUpdates();
    for (size_t i = 0; i < layout.tiles.size(); ++i) {
      auto update = offload::AwaitUpdate(store);
      ASSERT_TRUE(update.has_value());
      const offload::TileLayout& tile = layout.tile(update->tile);
      const auto gradient = GradientOf(tile);
      kernels::OptimizerTile planes =
          PlanesOf(layout, update->tile, update->weight.data(), update->record.data(),
                   reinterpret_cast<const std::byte*>(gradient.data()), 0, tile.elements);
      planes.rounding = scalars.RoundingOf(tile);
      kernels::Update(scalars.Of(tile), planes);
      offload::TileHasher after;
      after.Reset(update->seed_after, layout.planes(update->tile), tile.elements);
      after.Add(update->weight, update->record, 0, tile.elements);
      store.FinishUpdate(*update, after.Finish());
    }
    EXPECT_TRUE(store.Drain().ok());
  }

 protected:
  const ModelSpec model_ = ToySpec(3, 50000);
  std::filesystem::path folder_;
};

TEST_F(ShardTest, TheSharesOfAnyWorldHaveTheBitsOfOneRankThatHoldsAll) {
  const offload::ModelLayout model =
      MakeModelLayout(model_, DType::kBFloat16, {.dtype = DType::kBFloat16});
  const auto whole = Train(offload::MakeShard(model, 8192));
  for (const uint32_t world_size : {2U, 3U, 5U}) {
    size_t blocks = 0;
    for (uint32_t rank = 0; rank < world_size; ++rank) {
      const auto share = Train(offload::MakeShard(model, 12288, world_size, rank));
      blocks += share.size();
      for (const auto& [place, values] : share) {
        EXPECT_EQ(values, whole.at(place)) << world_size << ", " << rank << ": " << place.second;
      }
    }
    EXPECT_EQ(blocks, whole.size());
  }
}

}  // namespace
}  // namespace penstock::zero
