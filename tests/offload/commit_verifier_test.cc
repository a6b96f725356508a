// Reading a commit back, and hashing what lives in host memory when it is committed.
#include "offload/commit_verifier.h"

#include <gmock/gmock.h>

#include <memory>
#include <string>
#include <vector>

#include "offload/tile_store.h"
#include "tests/aio/wrapped_engine.h"
#include "tests/offload/await_update.h"
#include "tests/offload/state_file_support.h"

namespace penstock::offload {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

bool All(TileId, Part) { return true; }

class CommitVerifierTest : public StateFileTest {
 protected:
  Status Verify(StateFile& file, const CommitRecord& record, int threads,
                const CommitVerifier::Selection& selection = All) {
    PENSTOCK_ASSIGN(const std::unique_ptr<CommitVerifier> verifier,
                    CommitVerifier::Create(layout_, file, threads));
    return verifier->Verify(record.tiles, selection);
  }

  void FlipBit(const StateFile& file, Part part, TileId tile, const CommitRecord& record) {
    const std::string where =
        file.Where(part, tile, static_cast<int>(record.tiles[Index(tile)].slot));
    const auto at = where.rfind(' ');
    Overwrite(Paths(file).front(), std::stoull(where.substr(at)) + 4097, "?");
  }
};

TEST_F(CommitVerifierTest, PiecesOfAnySizeHaveTheChecksumOfTheWholePart) {
  for (const TileId tile : layout_.Tiles()) {
    const uint64_t seed = TileSeed(kUuid, layout_, tile, 7);
    for (const Part part : {Part::kWeight, Part::kRecord}) {
      const Bytes size =
          part == Part::kWeight ? layout_.WeightBytes(tile) : layout_.RecordBytes(tile);
      std::vector<std::byte> bytes(size.value);
      for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 37 >> 4);
      const uint64_t whole = part == Part::kWeight ? WeightChecksum(seed, bytes)
                                                   : RecordChecksum(seed, layout_, tile, bytes);
      PartHasher hasher;
      for (const size_t piece : {size_t{1}, size_t{4096}, size_t{10007}, bytes.size()}) {
        hasher.Reset(seed, part, layout_.planes(tile), layout_.tile(tile).elements);
        for (size_t at = 0; at < bytes.size(); at += piece) {
          hasher.Add(std::span(bytes).subspan(at, std::min(piece, bytes.size() - at)));
        }
        EXPECT_EQ(hasher.Finish(), whole) << piece;
      }
    }
  }
}

TEST_F(CommitVerifierTest, EveryPartIsReadOnceAndHolds) {
  for (const size_t paths : {1, 3}) {
    const std::unique_ptr<StateFile> file = Create(true, paths);
    const CommitRecord record = WriteTiles(*file, 3, 1);
    for (const int threads : {1, 2, 64}) {
      const auto verifier = CommitVerifier::Create(layout_, *file, threads).value();
      const Status verified = verifier->Verify(record.tiles, All);
      EXPECT_TRUE(verified.ok()) << verified.error().message;
      EXPECT_EQ(verifier->submitted_bytes(),
                (layout_.weight_bytes() + layout_.record_bytes()).value);
    }
  }
}

TEST_F(CommitVerifierTest, TheFirstDamagedPartIsNamedForAnyThreadThatFindsIt) {
  for (const int threads : {1, 4}) {
    const std::unique_ptr<StateFile> file = Create(true);
    const CommitRecord record = WriteTiles(*file, 3, 1);
    FlipBit(*file, Part::kRecord, TileId{3}, record);
    FlipBit(*file, Part::kRecord, TileId{1}, record);
    const Status verified = Verify(*file, record, threads);
    ASSERT_FALSE(verified.ok());
    EXPECT_EQ(verified.error().code, ErrorCode::kCorruption);
    EXPECT_THAT(verified.error().message,
                AllOf(HasSubstr("tile 1 (module a)"), HasSubstr("record of version 1"),
                      HasSubstr(file->Where(Part::kRecord, TileId{1}, 0)), HasSubstr("expected")));
    // What is not selected is not read.
    const Status others = Verify(*file, record, threads, [](TileId tile, Part part) {
      return part == Part::kWeight || Index(tile) % 2 == 0;
    });
    EXPECT_TRUE(others.ok()) << others.error().message;
  }
}

TEST_F(CommitVerifierTest, ABlockThatCannotBeReadIsNamed) {
  const std::unique_ptr<StateFile> file = Create(
      true, 1, aio::FaultPlan{.faults = {{.operation = aio::Operation::kRead, .first_block = 2}}});
  const CommitRecord record = WriteTiles(*file, 3, 1);
  const Status verified = Verify(*file, record, 1);
  ASSERT_FALSE(verified.ok());
  EXPECT_EQ(verified.error().code, ErrorCode::kIo);
  EXPECT_THAT(verified.error().message, HasSubstr(Paths(*file).front()));
}

TEST_F(CommitVerifierTest, ACommitThatDoesNotReadBackIsTakenBackAndTheOneBeforeStands) {
  const auto verify = [this](StateFile& file) {
    return [this, &file](const CommitRecord& record) { return Verify(file, record, 2); };
  };
  const auto good = [] { return Status(); };
  const std::unique_ptr<StateFile> file = Create(true);
  ASSERT_TRUE(file->Commit(WriteTiles(*file, 1, 1), good, verify(*file)).ok());
  ASSERT_TRUE(file->Commit(WriteTiles(*file, 2, 2), good, verify(*file)).ok());
  const CommitRecord third = WriteTiles(*file, 3, 3);
  FlipBit(*file, Part::kRecord, TileId{0}, third);
  const Status failed = file->Commit(third, good, verify(*file));
  ASSERT_FALSE(failed.ok());
  EXPECT_THAT(failed.error().message,
              AllOf(HasSubstr("the commit of step 3 was taken back"),
                    HasSubstr("nothing was written over the commit of step 2")));
  EXPECT_TRUE(file->CheckCommit().ok()) << "of step 2";
  EXPECT_FALSE(file->Commit(third).ok()) << "the failure is final";
  const auto reader = StateReader::Open(Paths(*file), StateLock::kHeld);
  ASSERT_TRUE(reader.ok()) << reader.error().message;
  EXPECT_EQ((*reader)->commit().head.step, 2U);
}

TEST_F(CommitVerifierTest, ACommitThatCouldNotBeVerifiedIsNotTakenBack) {
  const std::unique_ptr<StateFile> file = Create(true);
  ASSERT_TRUE(file->Commit(WriteTiles(*file, 1, 1)).ok());
  const Status failed = file->Commit(
      WriteTiles(*file, 2, 2), [] { return Status(); },
      [](const CommitRecord&) -> Status {
        return MakeError(ErrorCode::kOutOfMemory, "no thread can be started");
      });
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().code, ErrorCode::kOutOfMemory);
  EXPECT_THAT(failed.error().message, HasSubstr("commit of step 2 was written"));
  const auto reader = StateReader::Open(Paths(*file), StateLock::kHeld);
  ASSERT_TRUE(reader.ok()) << reader.error().message;
  EXPECT_EQ((*reader)->commit().head.step, 2U);
}

/// A store whose tiles all live in host memory.
class HomeStoreTest : public StateFileTest {
 protected:
  void SetUp() override {
    StateFileTest::SetUp();
    file_ = Create(true);
    slab_.emplace(Slab::Create(16_MiB).value());
    store_ = std::make_unique<TileStore>(
        layout_, schedule_,
        TileStoreOptions{.weight_home = Tier::kHost, .record_home = Tier::kHost, .hash_threads = 2},
        *slab_, *file_);
    for (const TileId tile : layout_.Tiles()) {
      ASSERT_TRUE(store_
                      ->FillTile(tile,
                                 [&](std::span<std::byte> weight, std::span<std::byte> record) {
                                   weights_.push_back(weight);
                                   records_.push_back(record);
                                   return Status();
                                 })
                      .ok());
    }
    store_->SetTime(0);
  }
  void TearDown() override {
    store_.reset();
    file_.reset();
    StateFileTest::TearDown();
  }

  Status Commit(uint64_t step) {
    return store_->Commit({.head = {.step = step, .optimizer_steps = step}, .json = "{}"},
                          [] { return Status(); });
  }

  /// One update of every tile, as an optimizer thread makes it that changes nothing. Returns how
  /// many tiles were compared with what the update before had left.
  Result<size_t> UpdateAll() {
    PENSTOCK_TRY(store_->PrepareUpdates());
    store_->BeginUpdates();
    size_t compared = 0;
    for (size_t i = 0; i < layout_.tiles.size(); ++i) {
      std::optional<TileUpdate> update = AwaitUpdate(*store_);
      if (!update) break;
      if (update->expected_weight && update->expected_record) ++compared;
      const TileChecksums before = ChecksumsOf(file_->uuid(), layout_, update->tile,
                                               update->version, update->weight, update->record);
      if (update->expected_weight.value_or(before.weight) != before.weight ||
          update->expected_record.value_or(before.record) != before.record) {
        store_->FailDamaged(*update, before);
        break;
      }
      store_->FinishUpdate(*update,
                           ChecksumsOf(file_->uuid(), layout_, update->tile, update->version + 1,
                                       update->weight, update->record));
    }
    PENSTOCK_TRY(store_->Drain());
    return compared;
  }

  const Schedule schedule_ = EachModuleOnce(layout_);
  std::unique_ptr<StateFile> file_;
  std::optional<Slab> slab_;
  std::unique_ptr<TileStore> store_;
  std::vector<std::span<std::byte>> weights_;
  std::vector<std::span<std::byte>> records_;
};

TEST_F(HomeStoreTest, ABitThatFlipsInMemoryIsNotCommitted) {
  ASSERT_TRUE(Commit(0).ok());
  ASSERT_TRUE(UpdateAll().ok());
  ASSERT_TRUE(Commit(1).ok());
  ASSERT_TRUE(UpdateAll().ok());
  records_[2].back() ^= std::byte{16};
  const Status committed = Commit(2);
  ASSERT_FALSE(committed.ok());
  EXPECT_EQ(committed.error().code, ErrorCode::kCorruption);
  EXPECT_THAT(committed.error().message,
              AllOf(HasSubstr("tile 2 (module a)"), HasSubstr("record of version 2 in host memory"),
                    HasSubstr("RAM")));
  EXPECT_TRUE(file_->CheckCommit().ok());
  const auto reader = StateReader::Open(Paths(*file_), StateLock::kHeld);
  ASSERT_TRUE(reader.ok()) << reader.error().message;
  EXPECT_EQ((*reader)->commit().head.step, 1U);
}

/// Also one whose tile no update has changed since: training computes with it.
TEST_F(HomeStoreTest, ABitThatFlipsAfterACommitIsFoundByTheNextOne) {
  ASSERT_TRUE(Commit(0).ok());
  weights_[3].front() ^= std::byte{1};
  const Status committed = Commit(1);
  ASSERT_FALSE(committed.ok());
  EXPECT_THAT(committed.error().message,
              AllOf(HasSubstr("tile 3 (module b)"), HasSubstr("weight of version 0")));
}

TEST_F(HomeStoreTest, UpdatesCompareEveryTileOnceInSoManySteps) {
  size_t compared = 0;
  for (uint64_t step = 0; step < kHomeTilesPerComparison; ++step) {
    const Result<size_t> of_step = UpdateAll();
    ASSERT_TRUE(of_step.ok()) << of_step.error().message;
    EXPECT_LE(*of_step, 1U) << "of fewer tiles than steps";
    compared += *of_step;
  }
  EXPECT_EQ(compared, layout_.tiles.size());
}

TEST_F(HomeStoreTest, AnUpdateThatComparesNamesTheMemory) {
  Status failed;
  for (uint64_t step = 0; failed.ok() && step < kHomeTilesPerComparison; ++step) {
    // A cell that does not keep what is written to it.
    weights_[1][100] ^= std::byte{128};
    failed = UpdateAll().status();
  }
  ASSERT_FALSE(failed.ok());
  EXPECT_THAT(failed.error().message,
              AllOf(HasSubstr("tile 1 (module a)"), HasSubstr("in host memory"), HasSubstr("RAM")));
}

}  // namespace
}  // namespace penstock::offload
