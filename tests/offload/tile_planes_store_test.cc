// The tile store with tiles that no configuration makes yet: states of 8 bits, frozen tiles.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "offload/state_check.h"
#include "offload/state_copy.h"
#include "offload/state_names.h"
#include "offload/state_reader.h"
#include "offload/tile_store.h"
#include "tests/offload/await_update.h"
#include "tests/offload/support.h"

namespace penstock::offload {
namespace {

class TilePlanesStoreTest : public FolderTest {
 protected:
  /// A store with all tiles at home on the drive (with O_DIRECT), or on the host.
  void Open(ShardLayout layout, Tier home) {
    layout_ = std::move(layout);
    schedule_ = EachModuleOnce(layout_);
    engine_ = aio::CreateEngine({.kind = aio::EngineKind::kThreads}).value();
    aio::Engine* const engines[] = {engine_.get()};
    file_ = StateFile::Create(layout_, {.folders = {folder_}}, engines).value();
    slab_.emplace(Slab::Create(64_MiB).value());
    store_ =
        std::make_unique<TileStore>(layout_, schedule_,
                                    // Nobody pins: blocks that are read ahead for the device stay.
                                    TileStoreOptions{.weight_home = home,
                                                     .record_home = home,
                                                     .weight_blocks = layout_.tiles.size() + 2,
                                                     .record_blocks = 1},
                                    *slab_, *file_);
  }

  /// Fills each tile with bytes of its own; what is behind a plane's last block stays zero.
  void Fill() {
    for (const TileId tile : layout_.Tiles()) {
      const auto fill = [&](std::span<std::byte> weight, std::span<std::byte> record) {
        WritePlanes(tile, 0, weight, record);
        return Status();
      };
      ASSERT_TRUE(store_->FillTile(tile, fill).ok());
    }
    ASSERT_TRUE(store_->Drain().ok());
    store_->SetTime(0);
  }

  void WritePlanes(TileId tile, uint64_t version, std::span<std::byte> weight,
                   std::span<std::byte> record) const {
    const uint64_t elements = layout_.tile(tile).elements;
    std::span<std::byte> part = weight;
    for (const Plane& plane : layout_.planes(tile).all()) {
      const Bytes used = plane.block * (elements / kBlockElements);
      for (uint64_t i = 0; i < used.value; ++i) {
        part[i] = static_cast<std::byte>(i * 7 + Index(tile) + 31 * version +
                                         static_cast<uint64_t>(plane.role));
      }
      part = plane.role == PlaneRole::kWeight ? record : part.subspan(plane.Size(elements).value);
    }
  }

  /// One update of every tile that has them, as an optimizer thread makes it.
  void UpdateAll() {
    ASSERT_TRUE(store_->PrepareUpdates().ok());
    store_->BeginUpdates();
    for (size_t i = 0; i < schedule_.update_order.size(); ++i) {
      auto update = AwaitUpdate(*store_);
      ASSERT_TRUE(update.has_value());
      EXPECT_FALSE(layout_.frozen(update->tile));
      TileHasher before;
      const uint64_t elements = layout_.tile(update->tile).elements;
      before.Reset(update->seed_before, layout_.planes(update->tile), elements);
      before.Add(update->weight, update->record, 0, elements);
      if (update->expected_record) {
        EXPECT_EQ(before.Finish().record, *update->expected_record);
      }
      WritePlanes(update->tile, update->version + 1, update->weight, update->record);
      store_->FinishUpdate(*update,
                           ChecksumsOf(file_->uuid(), layout_, update->tile, update->version + 1,
                                       update->weight, update->record));
    }
    ASSERT_TRUE(store_->Drain().ok());
  }

  void Commit(uint64_t step) {
    const Status committed = store_->Commit(
        {.head = {.step = step, .optimizer_steps = step}, .json = "{}"}, [] { return Status(); });
    ASSERT_TRUE(committed.ok()) << committed.error().message;
  }

  /// Whether the newest commit holds every tile as WritePlanes made it.
  void ExpectCommitted(uint64_t version) const {
    const auto reader = StateReader::Open(StatePathsIn({folder_}, file_->uuid()), StateLock::kHeld);
    ASSERT_TRUE(reader.ok()) << reader.error().message;
    ExpectCommitted(**reader, version);
  }
  void ExpectCommitted(const StateReader& reader, uint64_t version) const {
    for (const TileId tile : layout_.Tiles()) {
      StateReader::TileBytes found;
      const Status read = reader.ReadTile(tile, found);
      ASSERT_TRUE(read.ok()) << read.error().message;
      StateReader::TileBytes expected{std::vector<std::byte>(found.weight.size()),
                                      std::vector<std::byte>(found.record.size())};
      WritePlanes(tile, layout_.frozen(tile) ? 0 : version, expected.weight, expected.record);
      EXPECT_TRUE(found.weight == expected.weight) << Index(tile);
      EXPECT_TRUE(found.record == expected.record) << Index(tile);
    }
  }

  ShardLayout layout_;
  Schedule schedule_;
  std::unique_ptr<aio::Engine> engine_;
  std::unique_ptr<StateFile> file_;
  std::optional<Slab> slab_;
  std::unique_ptr<TileStore> store_;
};

TEST_F(TilePlanesStoreTest, StatesOfEightBitsAreReadBackAsTheyWereWritten) {
  const Planes planes{MakePlane(PlaneRole::kWeight, Encoding::kBFloat16),
                      MakePlane(PlaneRole::kLo, Encoding::kInt16),
                      MakeBlockwise8Plane(PlaneRole::kExpAvg),
                      MakeBlockwise8Plane(PlaneRole::kExpAvgSq)};
  // Tiles of 1, 3 and 255 blocks.
  ModelLayout model{.groups = DecayGroups(planes),
                    .modules = {MakeModule("one", {{"one", {4096}, kDecay}}),
                                MakeModule("three", {{"three", {3 * 4096}, kDecay}}),
                                MakeModule("many", {{"many", {255 * 4096}, kDecay}})},
                    .parameters = 259 * 4096};
  const ShardLayout layout = MakeShard(std::move(model), 255 * kBlockElements);
  ASSERT_EQ(layout.tiles.size(), 3);
  for (const Tier home : {Tier::kNvme, Tier::kHost}) {
    Open(layout, home);
    Fill();
    Commit(0);
    ExpectCommitted(0);
    UpdateAll();
    Commit(1);
    ExpectCommitted(1);
    store_.reset();
    file_.reset();
  }
}

TEST_F(TilePlanesStoreTest, AFrozenTileIsWrittenOnceAndHasNoRecord) {
  ModelLayout model{.groups = {{.name = "trained", .planes = MakePlanes(DType::kBFloat16)},
                               {.name = "frozen",
                                .planes = MakeFrozenPlanes(DType::kBFloat16),
                                .frozen = true,
                                .parameter_group = 1}},
                    .modules = {MakeModule("a", {{"a.base", {5 * 4096}, GroupId{1}},
                                                 {"a.lora", {4096}, GroupId{0}}}),
                                MakeModule("b", {{"b.base", {3 * 4096}, GroupId{1}}})},
                    .parameters = 9 * 4096};
  const ShardLayout layout = MakeShard(std::move(model), 2 * kBlockElements);
  for (const Tier home : {Tier::kNvme, Tier::kHost}) {
    Open(layout, home);
    Fill();
    Commit(0);
    ExpectCommitted(0);
    const uint64_t written = engine_->stats().write_bytes;
    for (const uint64_t step : {1, 2, 3}) {
      UpdateAll();
      Commit(step);
      ExpectCommitted(step);
    }
    // The tile that is trained, and commits: a record of 32 bytes a tile, in pages.
    const uint64_t trained = 14 * 4096;
    const uint64_t record = file_->slots() == 2 ? 72 * 1024 : 0;
    EXPECT_LE(engine_->stats().write_bytes - written, 3 * (trained + record));
    EXPECT_EQ(store_->updates_finished(), 3);
    store_.reset();
    file_.reset();
  }
}

TEST_F(TilePlanesStoreTest, AStateWithFrozenTilesIsCheckedAndCopiedAsAnyOtherIs) {
  ModelLayout model{
      .groups = {{.name = "trained", .planes = MakePlanes(DType::kBFloat16)},
                 {.name = "frozen", .planes = MakeFrozenPlanes(DType::kBFloat16), .frozen = true}},
      .modules = {MakeModule("a",
                             {{"a.base", {5 * 4096}, GroupId{1}}, {"a.lora", {4096}, GroupId{0}}})},
      .parameters = 6 * 4096};
  Open(MakeShard(std::move(model), 2 * kBlockElements), Tier::kNvme);
  Fill();
  UpdateAll();
  Commit(1);
  const auto state =
      WholeState::Open({StatePathsIn({folder_}, file_->uuid())}, StateLock::kHeld).value();
  const auto check = CheckState(state.rank(0), kNoProgress);
  ASSERT_TRUE(check.ok()) << check.error().message;
  EXPECT_THAT(check->damages, ::testing::IsEmpty());
  const std::string copy = folder_ / "copy.state";
  const Status copied = CopyState(state, {{copy}}, [] { return false; });
  ASSERT_TRUE(copied.ok()) << copied.error().message;
  ExpectCommitted(*StateReader::Open({copy}).value(), 1);
}

TEST_F(TilePlanesStoreTest, AStateOfFrozenTilesAloneIsCommittedAndReadBack) {
  ModelLayout model{
      .groups = {{.name = "frozen", .planes = MakeFrozenPlanes(DType::kFloat16), .frozen = true}},
      .modules = {MakeModule("a", {{"a", {3 * 4096}, GroupId{0}}})},
      .parameters = 3 * 4096};
  Open(MakeShard(std::move(model), kBlockElements), Tier::kNvme);
  Fill();
  UpdateAll();
  Commit(5);
  ExpectCommitted(5);
}

}  // namespace
}  // namespace penstock::offload
