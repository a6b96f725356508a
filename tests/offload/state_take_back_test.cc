// Taking the newest commit back: what a reader finds afterwards, and after a kill in between.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/mapping.h"
#include "offload/state_file.h"
#include "offload/state_reader.h"
#include "tests/offload/support.h"

namespace penstock::offload {
namespace {

using ::testing::HasSubstr;

class StateTakeBackTest : public FolderTest {
 protected:
  std::unique_ptr<StateFile> Make(bool durable) {
    MakeEngine({});
    aio::Engine* const engines[] = {engine_.get()};
    auto file = StateFile::Create(
        layout_, {.folders = {folder_}, .durable = durable, .require_direct = false}, engines);
    EXPECT_TRUE(file.ok()) << file.error().message;
    path_ = (*file)->Shares().front().path;
    return std::move(file).value();
  }

  /// The same state, resumed.
  std::unique_ptr<StateFile> GoOn() {
    MakeEngine({});
    aio::Engine* const engines[] = {engine_.get()};
    auto opened = StateFile::Open({path_}, layout_, false, engines);
    EXPECT_TRUE(opened.ok()) << opened.error().message;
    return std::move(opened->file);
  }

  void MakeEngine(const std::optional<aio::FaultPlan>& faults) {
    engine_ = aio::CreateEngine(
                  {.kind = aio::EngineKind::kThreads, .block_size = 16_KiB, .faults = faults})
                  .value();
  }

  Status WriteTiles(StateFile& file, uint8_t value, CommitRecord& record) {
    record = {.head = {.step = value}};
    PENSTOCK_TRY(file.PrepareWrites());
    for (const TileId tile : layout_.Tiles()) {
      const auto slot = static_cast<uint32_t>(file.WriteSlot(tile));
      PENSTOCK_ASSIGN(const Mapping weight, Filled(layout_.WeightBytes(tile), value));
      PENSTOCK_ASSIGN(const Mapping states, Filled(layout_.RecordBytes(tile), value));
      const auto bytes = [](const Mapping& mapping, Bytes size) {
        return std::span(mapping.data(), size.value);
      };
      for (const Part part : {Part::kWeight, Part::kRecord}) {
        const Mapping& from = part == Part::kWeight ? weight : states;
        PENSTOCK_TRY(file.Submit({.part = part,
                                  .tile = tile,
                                  .slot = static_cast<int>(slot),
                                  .operation = aio::Operation::kWrite,
                                  .buffer = bytes(from, from.size())})
                         .Wait());
      }
      record.tiles.push_back({.version = value,
                              .checksums = ChecksumsOf(file.uuid(), layout_, tile, value,
                                                       bytes(weight, layout_.WeightBytes(tile)),
                                                       bytes(states, layout_.RecordBytes(tile))),
                              .slot = slot});
    }
    return {};
  }

  Status CommitStep(StateFile& file, uint8_t step) {
    CommitRecord record;
    PENSTOCK_TRY(WriteTiles(file, step, record));
    return file.Commit(std::move(record));
  }

  /// A state with the commits of steps 1 and 2; null where the faults did not let them be made.
  std::unique_ptr<StateFile> TryTwoCommits(const aio::FaultPlan& faults) {
    MakeEngine(faults);
    aio::Engine* const engines[] = {engine_.get()};
    auto file =
        StateFile::Create(layout_, {.folders = {folder_}, .require_direct = false}, engines);
    if (!file.ok() || !CommitStep(**file, 1).ok() || !CommitStep(**file, 2).ok()) return nullptr;
    path_ = (*file)->Shares().front().path;
    return std::move(file).value();
  }

  /// The first block, of those that `faults_from` makes to fail from a number on, that the drive
  /// is asked for when both commits are made.
  uint64_t FirstBlockOfTakingBack(const std::function<aio::FaultPlan(uint64_t)>& faults_from) {
    uint64_t too_early = 0;
    uint64_t first = 1024;
    while (too_early + 1 < first) {
      const uint64_t tried = (too_early + first) / 2;
      (TryTwoCommits(faults_from(tried)) ? first : too_early) = tried;
    }
    return first;
  }

  static Result<Mapping> Filled(Bytes size, uint8_t value) {
    PENSTOCK_ASSIGN(Mapping mapping, Mapping::Create(size));
    std::memset(mapping.data(), value, size.value);
    return mapping;
  }

  /// The step of the commit that a reader finds, with all its tiles as they were written; none
  /// where there is no commit.
  std::optional<uint64_t> Found() {
    const auto reader = StateReader::Open({path_});
    if (!reader.ok()) {
      EXPECT_EQ(reader.error().code, ErrorCode::kNotFound) << reader.error().message;
      return std::nullopt;
    }
    const uint64_t step = (*reader)->commit().head.step;
    for (const TileId tile : layout_.Tiles()) {
      StateReader::TileBytes bytes;
      const Status read = (*reader)->ReadTile(tile, bytes);
      EXPECT_TRUE(read.ok()) << read.error().message;
      if (!read.ok()) continue;
      EXPECT_EQ(bytes.weight.front(), static_cast<std::byte>(step));
      EXPECT_EQ(bytes.record.back(), static_cast<std::byte>(step));
    }
    return step;
  }

  const ShardLayout layout_ = SmallLayout(DType::kBFloat16);
  std::unique_ptr<aio::Engine> engine_;
  std::string path_;
};

TEST_F(StateTakeBackTest, AReaderFindsTheCommitBeforeWithItsTiles) {
  for (uint8_t commits = 2; commits <= 3; ++commits) {
    auto file = Make(true);
    for (uint8_t step = 1; step <= commits; ++step) ASSERT_TRUE(CommitStep(*file, step).ok());
    ASSERT_TRUE(file->TakeBack().ok());
    EXPECT_TRUE(file->CheckCommit().ok()) << "the one before stands";
    file.reset();
    EXPECT_EQ(Found(), commits - 1);
  }
}

TEST_F(StateTakeBackTest, TheCommitFromWhichARunResumedStandsAgain) {
  auto file = Make(true);
  ASSERT_TRUE(CommitStep(*file, 1).ok());
  file.reset();
  file = GoOn();
  ASSERT_TRUE(CommitStep(*file, 2).ok());
  ASSERT_TRUE(file->TakeBack().ok());
  file.reset();
  EXPECT_EQ(Found(), 1);
  // And a run resumes from it.
  file = GoOn();
  ASSERT_TRUE(CommitStep(*file, 2).ok());
  file.reset();
  EXPECT_EQ(Found(), 2);
}

TEST_F(StateTakeBackTest, NoCommitStandsWhereNoneWasBeforeOrItsSlotsAreGone) {
  struct Case {
    bool durable;
    uint8_t commits;
    bool written_since;
  };
  for (const Case& tried :
       {Case{true, 1, false}, Case{true, 2, true}, Case{false, 1, false}, Case{false, 2, false}}) {
    SCOPED_TRACE(fmt::format("durable {}, {} commits, written since {}", tried.durable,
                             tried.commits, tried.written_since));
    auto file = Make(tried.durable);
    for (uint8_t step = 1; step <= tried.commits; ++step) {
      ASSERT_TRUE(CommitStep(*file, step).ok());
    }
    if (tried.written_since) {
      CommitRecord never_committed;
      ASSERT_TRUE(WriteTiles(*file, 9, never_committed).ok());
    }
    ASSERT_TRUE(file->TakeBack().ok());
    const Status checked = file->CheckCommit();
    ASSERT_FALSE(checked.ok());
    EXPECT_EQ(checked.error().code, ErrorCode::kNotFound);
    file.reset();
    EXPECT_EQ(Found(), std::nullopt);
  }
}

TEST_F(StateTakeBackTest, OnlyACommitOfThisRunIsTakenBack) {
  auto file = Make(true);
  EXPECT_EQ(file->TakeBack().error().code, ErrorCode::kNotFound);
  ASSERT_TRUE(CommitStep(*file, 1).ok());
  file.reset();
  file = GoOn();
  EXPECT_EQ(file->TakeBack().error().code, ErrorCode::kNotFound);
  ASSERT_TRUE(CommitStep(*file, 2).ok()) << "nothing was taken back";
  file.reset();
  EXPECT_EQ(Found(), 2);
}

TEST_F(StateTakeBackTest, NothingIsPreparedOrCommittedAfterwards) {
  const auto file = Make(true);
  CommitRecord record;
  ASSERT_TRUE(WriteTiles(*file, 1, record).ok());
  ASSERT_TRUE(file->Commit(record).ok());
  ASSERT_TRUE(file->TakeBack().ok());
  for (const Status& after : {file->PrepareWrites(), file->Commit(record), file->TakeBack()}) {
    ASSERT_FALSE(after.ok());
    EXPECT_THAT(after.error().message, HasSubstr(path_));
    EXPECT_THAT(after.error().message, HasSubstr("taken back"));
  }
}

TEST_F(StateTakeBackTest, AWriteOrASyncThatFailsIsReportedAndFinal) {
  for (const aio::Operation operation : {aio::Operation::kWrite, aio::Operation::kSync}) {
    const auto faults_from = [&](uint64_t block) {
      return aio::FaultPlan{
          .faults = {{.operation = operation, .first_block = block, .count = 1024}}};
    };
    auto file = TryTwoCommits(faults_from(FirstBlockOfTakingBack(faults_from)));
    ASSERT_NE(file, nullptr);
    const Status failed = file->TakeBack();
    ASSERT_FALSE(failed.ok());
    EXPECT_THAT(failed.error().message, HasSubstr(path_));
    EXPECT_EQ(file->TakeBack().error().message, failed.error().message);
    EXPECT_FALSE(file->PrepareWrites().ok());
    file.reset();
    const std::optional<uint64_t> found = Found();
    EXPECT_TRUE(found == 1 || found == 2);
  }
}

TEST_F(StateTakeBackTest, KilledAtAnyBlockAReaderFindsTheNewestCommitOrTheOneBefore) {
  // A drive with a cache that forgets: what no sync covered reaches the file in part, some torn.
  size_t newest = 0;
  size_t before = 0;
  for (uint64_t seed = 0; seed < 4; ++seed) {
    const auto crash_at = [&](uint64_t block) {
      return aio::FaultPlan{.seed = seed, .lose_unsynced = true, .crash_at_block = block};
    };
    for (uint64_t block = FirstBlockOfTakingBack(crash_at);; ++block) {
      SCOPED_TRACE(fmt::format("seed {}, crash at block {}", seed, block));
      auto file = TryTwoCommits(crash_at(block));
      ASSERT_NE(file, nullptr);
      const bool taken_back = file->TakeBack().ok();
      file.reset();
      engine_.reset();  // leaves of the cache what the crash leaves
      const std::optional<uint64_t> found = Found();
      ASSERT_TRUE(found == 1 || found == 2);
      ++(found == 2 ? newest : before);
      if (!taken_back) continue;
      EXPECT_EQ(found, 1);
      break;
    }
  }
  EXPECT_GT(newest, 0U);
  EXPECT_GT(before, 4U) << "killed before the end as well";
}

}  // namespace
}  // namespace penstock::offload
