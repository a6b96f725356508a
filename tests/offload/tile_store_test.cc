#include "offload/tile_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/aio/wrapped_engine.h"
#include "tests/offload/await_update.h"
#include "tests/offload/support.h"

namespace penstock::offload {
namespace {

/// An engine whose drive takes no reads any more once `stuck` is set: they wait to be cancelled.
class StuckEngine final : public aio::WrappedEngine {
 public:
  StuckEngine() : WrappedEngine(aio::CreateEngine({.kind = aio::EngineKind::kThreads}).value()) {}

  aio::Ticket Submit(aio::Request request) override {
    {
      const std::lock_guard lock(mutex_);
      if (stuck_ && request.operation == aio::Operation::kRead) {
        waiting_.push_back(std::move(request));
        return {};
      }
    }
    return WrappedEngine::Submit(std::move(request));
  }
  void Cancel() override {
    std::vector<aio::Request> cancelled;
    {
      const std::lock_guard lock(mutex_);
      cancelled.swap(waiting_);
    }
    for (const aio::Request& request : cancelled) {
      request.on_complete(Error{ErrorCode::kCancelled, "cancelled"});
    }
    WrappedEngine::Cancel();
  }

  void GetStuck() {
    const std::lock_guard lock(mutex_);
    stuck_ = true;
  }
  size_t waiting() {
    const std::lock_guard lock(mutex_);
    return waiting_.size();
  }

 private:
  std::mutex mutex_;
  bool stuck_ = false;
  std::vector<aio::Request> waiting_;
};

/// An engine that damages what it reads of the weights of one tile, in a state where every byte of
/// a weight is the tile's number.
class DamagingEngine final : public aio::WrappedEngine {
 public:
  explicit DamagingEngine(TileId tile)
      : WrappedEngine(aio::CreateEngine({.kind = aio::EngineKind::kThreads}).value()),
        value_(static_cast<std::byte>(Index(tile))) {}

  aio::Ticket Submit(aio::Request request) override {
    if (request.operation == aio::Operation::kRead) {
      request.on_complete = [this, buffer = request.buffer,
                             done = std::move(request.on_complete)](const auto& result) {
        if (buffer.back() == value_) buffer.back() ^= std::byte{0x40};
        done(result);
      };
    }
    return WrappedEngine::Submit(std::move(request));
  }

 private:
  const std::byte value_;
};

class TileStoreTest : public FolderTest {
 protected:
  /// A store over `engine`, empty.
  void Create(std::unique_ptr<aio::Engine> engine, ShardLayout layout,
              const TileStoreOptions& options) {
    engine_ = std::move(engine);
    layout_ = std::move(layout);
    schedule_ = EachModuleOnce(layout_);
    aio::Engine* const engines[] = {engine_.get()};
    file_ = StateFile::Create(layout_, {.folders = {folder_}, .require_direct = false}, engines)
                .value();
    slab_.emplace(Slab::Create(4_MiB).value());
    store_ = std::make_unique<TileStore>(layout_, schedule_, options, *slab_, *file_);
  }
  /// The same, filled.
  void Fill(std::unique_ptr<aio::Engine> engine, ShardLayout layout,
            const TileStoreOptions& options) {
    Create(std::move(engine), std::move(layout), options);
    for (const TileId tile : layout_.Tiles()) {
      const auto fill = [&](std::span<std::byte> weight, std::span<std::byte>) {
        std::ranges::fill(weight, static_cast<std::byte>(Index(tile)));
        return Status();
      };
      ASSERT_TRUE(store_->FillTile(tile, fill).ok());
    }
    ASSERT_TRUE(store_->Drain().ok());
  }
  void TearDown() override {
    store_.reset();
    file_.reset();
    FolderTest::TearDown();
  }

  std::unique_ptr<aio::Engine> engine_;
  ShardLayout layout_;
  Schedule schedule_;
  std::unique_ptr<StateFile> file_;
  std::optional<Slab> slab_;
  std::unique_ptr<TileStore> store_;
};

TEST_F(TileStoreTest, EndsWithoutTheReadsThatTheDriveHasNotBegun) {
  auto engine = std::make_unique<StuckEngine>();
  StuckEngine& drive = *engine;
  ASSERT_NO_FATAL_FAILURE(Fill(std::move(engine), SmallLayout(DType::kBFloat16),
                               {.weight_blocks = 4, .record_blocks = 2}));
  drive.GetStuck();
  store_->SetTime(0);
  ASSERT_GT(drive.waiting(), 0U) << "records are read ahead";
  store_.reset();  // would wait for ever
  EXPECT_EQ(drive.waiting(), 0U);
}

/// One module of six tiles.
ShardLayout SixTiles() {
  ModelLayout model{.groups = DecayGroups(MakePlanes(DType::kBFloat16))};
  model.modules.push_back(MakeModule("m", {{.name = "m.weight", .shape = {6 * kBlockElements}}}));
  return MakeShard(std::move(model), kBlockElements);
}

TEST_F(TileStoreTest, PinsWithTheFirstTileThoseBehindItThatAreThere) {
  ASSERT_NO_FATAL_FAILURE(Fill(aio::CreateEngine({.kind = aio::EngineKind::kThreads}).value(),
                               SixTiles(), {.weight_blocks = 3, .record_blocks = 1}));
  const IdRange<TileId> tiles = layout_.Tiles();
  const Bytes weight = layout_.WeightBytes(tiles[0]);
  store_->SetTime(0);
  const ReadChecker checker(*store_);
  std::vector<PinnedWeights> leases;
  const auto count = [&](size_t first, Bytes most) -> size_t {
    auto pinned = store_->PinWeights(tiles.Part(first, tiles.size() - first), most);
    EXPECT_TRUE(pinned.ok());
    if (!pinned.ok()) return 0;
    const auto& weights = leases.emplace_back(*std::move(pinned)).weights();
    for (size_t i = 0; i < weights.size(); ++i) {
      EXPECT_EQ(weights[i].size(), weight.value);
      EXPECT_EQ(weights[i].front(), static_cast<std::byte>(first + i));
    }
    return weights.size();
  };
  for (size_t tile = 0; tile < 3; ++tile) {
    EXPECT_EQ(count(tile, 0_B), 1U) << "the first one, which is waited for, whatever its size";
  }
  EXPECT_EQ(count(0, weight * 2), 2U) << "no more than `most`";
  EXPECT_EQ(count(1, 1_MiB), 2U) << "none that is not there: every block is pinned";
  leases.clear();
  EXPECT_EQ(count(3, 0_B), 1U) << "a block is free again";
}

TEST_F(TileStoreTest, APinThatIsDroppedIsGivenBack) {
  ASSERT_NO_FATAL_FAILURE(Fill(aio::CreateEngine({.kind = aio::EngineKind::kThreads}).value(),
                               SixTiles(), {.weight_blocks = 3, .record_blocks = 1}));
  const IdRange<TileId> tiles = layout_.Tiles();
  store_->SetTime(0);
  const ReadChecker checker(*store_);
  const auto pin = [&](size_t tile) {
    return store_->PinWeights(tiles.Part(tile, 1), 0_B).value();
  };
  // They hold all blocks, while the other tiles are needed now: whatever is given back is evicted.
  const PinnedWeights first = pin(0);
  std::optional<PinnedWeights> second = pin(1);
  PinnedWeights third = pin(2);
  const uint64_t before = store_->evictions();
  second.reset();
  EXPECT_EQ(store_->evictions(), before + 1) << "dropped";
  third = PinnedWeights();
  EXPECT_EQ(store_->evictions(), before + 2) << "replaced";
  PinnedWeights fourth = pin(3);
  {
    PinnedWeights moved(std::move(fourth));
    EXPECT_EQ(store_->evictions(), before + 2) << "moved";
    moved.Release();
    EXPECT_EQ(store_->evictions(), before + 3) << "released";
  }
  EXPECT_EQ(store_->evictions(), before + 3) << "once";
  EXPECT_EQ(first.weights().front().front(), std::byte{0});
}

TEST_F(TileStoreTest, PinsOfWeightsThatLiveInHostMemoryHoldNothing) {
  ASSERT_NO_FATAL_FAILURE(
      Fill(aio::CreateEngine({.kind = aio::EngineKind::kThreads}).value(), SixTiles(),
           {.weight_home = Tier::kHost, .record_home = Tier::kHost, .weight_blocks = 0}));
  store_->SetTime(0);
  const auto pinned = store_->PinWeights(layout_.Tiles(), 1_MiB);
  ASSERT_TRUE(pinned.ok());
  EXPECT_EQ(pinned->weights().size(), 6U);
  EXPECT_FALSE(pinned->holds_blocks());
}

TEST_F(TileStoreTest, AnUpdateThatIsDroppedIsTakenAgain) {
  for (const Tier home : {Tier::kNvme, Tier::kHost}) {
    // Nobody pins: blocks that are read ahead for the device stay.
    ASSERT_NO_FATAL_FAILURE(
        Fill(aio::CreateEngine({.kind = aio::EngineKind::kThreads}).value(), SixTiles(),
             {.weight_home = home, .record_home = home, .weight_blocks = 8, .record_blocks = 2}));
    // With the store's mutex held. Begun before anything is read, so that updates hash the weights.
    size_t announced = 0;
    store_->OnWork([&](size_t tiles) { announced += tiles; });
    ASSERT_TRUE(store_->PrepareUpdates().ok());
    store_->BeginUpdates();
    store_->SetTime(0);
    std::set<TileId> dropped;
    while (store_->updates_finished() < layout_.tiles.size()) {
      auto update = AwaitUpdate(*store_);
      ASSERT_TRUE(update.has_value());
      EXPECT_EQ(update->version, 0U);
      if (dropped.insert(update->tile).second) continue;
      std::ranges::fill(update->weight, std::byte{0xEE});
      store_->FinishUpdate(*update, ChecksumsOf(file_->uuid(), layout_, update->tile, 1,
                                                update->weight, update->record));
    }
    ASSERT_TRUE(store_->Drain().ok());
    EXPECT_EQ(dropped.size(), layout_.tiles.size());
    EXPECT_EQ(announced, 2 * layout_.tiles.size()) << "each once more, because it was dropped";
    store_.reset();
    file_.reset();
  }
}

TEST_F(TileStoreTest, AFillingThatFindsNoMemoryFailsTheStoreAndTheWaitersForItsBlock) {
  Create(aio::CreateEngine({.kind = aio::EngineKind::kThreads}).value(), SixTiles(),
         {.weight_blocks = 2, .record_blocks = 1});
  const auto no_memory = [](std::span<std::byte>, std::span<std::byte>) -> Status {
    throw std::bad_alloc();
  };
  const auto zeros = [](std::span<std::byte>, std::span<std::byte>) { return Status(); };
  EXPECT_EQ(store_->FillTile(TileId{0}, no_memory).error().code, ErrorCode::kOutOfMemory);
  EXPECT_EQ(store_->FillTile(TileId{1}, zeros).error().code, ErrorCode::kOutOfMemory);
}

TEST_F(TileStoreTest, NamesTheTileOfSeveralPinnedTogetherThatIsDamaged) {
  ASSERT_NO_FATAL_FAILURE(Fill(std::make_unique<DamagingEngine>(TileId{4}), SixTiles(),
                               {.weight_blocks = 3, .record_blocks = 1}));
  const IdRange<TileId> tiles = layout_.Tiles();
  store_->SetTime(0);
  const ReadChecker checker(*store_);
  // The first three take all blocks, so that the others are read.
  std::vector<PinnedWeights> leases;
  for (size_t tile = 0; tile < 3; ++tile) {
    auto pinned = store_->PinWeights(tiles.Part(tile, 1), 0_B);
    ASSERT_TRUE(pinned.ok());
    leases.push_back(*std::move(pinned));
  }
  leases.clear();
  Status status;
  for (size_t first = 3; status.ok() && first < tiles.size();) {
    auto pinned = store_->PinWeights(tiles.Part(first, tiles.size() - first), 1_MiB);
    status = pinned.status();
    if (!pinned.ok()) break;
    first += pinned->weights().size();
    leases.push_back(*std::move(pinned));
  }
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kCorruption);
  EXPECT_THAT(status.error().message, ::testing::HasSubstr("checksum of tile 4 (module m)"));
}

TEST_F(TileStoreTest, AWeightThatWasReadIsPinnedOnceItsChecksumWasComparedAndNotBefore) {
  ASSERT_NO_FATAL_FAILURE(Fill(aio::CreateEngine({.kind = aio::EngineKind::kThreads}).value(),
                               SixTiles(), {.weight_blocks = 3, .record_blocks = 1}));
  const IdRange<TileId> tiles = layout_.Tiles();
  store_->SetTime(0);
  std::vector<PinnedWeights> leases;
  {
    const ReadChecker checker(*store_);
    for (size_t tile = 0; tile < 3; ++tile) {
      leases.push_back(store_->PinWeights(tiles.Part(tile, 1), 0_B).value());
    }
  }
  size_t announced = 0;  // with the store's mutex held
  store_->OnWork([&](size_t count) { announced += count; });
  EXPECT_FALSE(store_->TryTakeRead().has_value()) << "every block is pinned";
  leases.clear();  // one block stays with an update that is loaded ahead
  std::vector<ReadWeight> reads;
  ASSERT_TRUE(BecomesTrue([&] {
    if (const auto read = store_->TryTakeRead()) reads.push_back(*read);
    return reads.size() >= 2;
  }));
  store_->OnWork(nullptr);
  EXPECT_EQ(announced, 2U) << "a thread is woken for each";
  EXPECT_FALSE(store_->TryTakeRead().has_value()) << "each once";
  for (const ReadWeight& read : reads) {
    const size_t tile = Index(read.tile);
    store_->FinishRead(read, WeightChecksum(read.seed, read.weight));
    const auto pinned = store_->PinWeights(tiles.Part(tile, tiles.size() - tile), 1_MiB);
    ASSERT_TRUE(pinned.ok());
    EXPECT_EQ(pinned->weights().size(), 1U) << "those behind tile " << tile << " were read alone";
  }
}

TEST_F(TileStoreTest, AWeightThatDoesNotHashToWhatWasWrittenFailsTheStore) {
  ASSERT_NO_FATAL_FAILURE(Fill(aio::CreateEngine({.kind = aio::EngineKind::kThreads}).value(),
                               SixTiles(), {.weight_blocks = 2, .record_blocks = 1}));
  store_->SetTime(0);
  std::optional<ReadWeight> read;
  ASSERT_TRUE(BecomesTrue([&] { return (read = store_->TryTakeRead()).has_value(); }));
  store_->FinishRead(*read, read->expected + 1);
  const auto pinned = store_->PinWeights(layout_.Tiles(), 1_MiB);
  ASSERT_FALSE(pinned.ok());
  EXPECT_EQ(pinned.error().code, ErrorCode::kCorruption);
  EXPECT_THAT(pinned.error().message,
              ::testing::HasSubstr("checksum of tile " + std::to_string(Index(read->tile))));
  EXPECT_FALSE(store_->TryTakeRead().has_value());
}

TEST_F(TileStoreTest, AnUpdateThatHasBegunComparesTheWeightItselfAsItReadsIt) {
  ASSERT_NO_FATAL_FAILURE(Fill(aio::CreateEngine({.kind = aio::EngineKind::kThreads}).value(),
                               SixTiles(), {.weight_blocks = 2, .record_blocks = 1}));
  ASSERT_TRUE(store_->PrepareUpdates().ok());
  store_->BeginUpdates();
  store_->SetTime(0);
  std::thread drain([&] { EXPECT_TRUE(store_->Drain().ok()); });  // nobody uses the weights
  size_t compared = 0;
  while (store_->updates_finished() < layout_.tiles.size()) {
    // Updated weights are read for the device again.
    if (store_->updates_finished() > 0) {
      while (CheckRead(*store_)) continue;
    }
    std::optional<TileUpdate> update = store_->TryTakeUpdate();
    if (!update) {
      std::this_thread::yield();
      continue;
    }
    EXPECT_TRUE(store_->updates_finished() > 0 || !CheckRead(*store_));
    compared += update->expected_weight.has_value() ? 1 : 0;
    store_->FinishUpdate(*update, ChecksumsOf(file_->uuid(), layout_, update->tile, 1,
                                              update->weight, update->record));
  }
  drain.join();
  EXPECT_GE(compared, layout_.tiles.size() - 2) << "all but those that were in memory";
}

}  // namespace
}  // namespace penstock::offload
