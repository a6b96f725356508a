// State files: what is written, committed and read.
#include <gmock/gmock.h>

#include <atomic>
#include <thread>

#include "tests/deadline.h"
#include "tests/offload/state_file_support.h"

namespace penstock::offload {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST_F(StateFileTest, TheNewestCommitIsWhatAReaderFinds) {
  for (const size_t count : {1, 2, 3}) {
    std::vector<std::string> paths;
    {
      const auto file = Create(true, count);
      paths = Paths(*file);
      for (uint8_t step = 1; step <= 3; ++step) {
        ASSERT_TRUE(file->Commit(WriteTiles(*file, step, step)).ok());
      }
    }
    ASSERT_EQ(paths.size(), count);
    ExpectCommitted(paths, 3, 3);
  }
}

TEST_F(StateFileTest, ACommitThatCannotBeMadeDurableOnTheSecondPathIsNone) {
  std::vector<std::string> paths;
  {
    // The creation of a path has three syncs, its commits have one each.
    const aio::Fault second_commit{.operation = aio::Operation::kSync, .first_block = 4};
    const auto file = Create(true, 2, aio::FaultPlan{.faults = {second_commit}});
    paths = Paths(*file);
    ASSERT_TRUE(file->Commit(WriteTiles(*file, 1, 1)).ok());
    const CommitRecord second = WriteTiles(*file, 2, 2);
    const Status failed = file->Commit(second);
    ASSERT_FALSE(failed.ok());
    EXPECT_THAT(failed.error().message, HasSubstr(paths[1]));
    EXPECT_FALSE(file->Commit(second).ok()) << "the failure is final";
  }
  const auto reader = StateReader::Open(paths);
  ASSERT_TRUE(reader.ok());
  EXPECT_EQ((*reader)->commit().head.step, 1);
}

TEST_F(StateFileTest, AFaultOnTheSecondPathNamesIt) {
  const auto file =
      Create(true, 2, aio::FaultPlan{.faults = {{.operation = aio::Operation::kRead}}});
  ASSERT_TRUE(file->Commit(WriteTiles(*file, 1, 1)).ok());
  size_t failed = 0;
  for (uint32_t i = 0; i < layout_.tiles.size(); ++i) {
    const auto buffer = Filled(layout_.WeightBytes(TileId{i}), 0);
    const Status read =
        file->Submit({.tile = TileId{i}, .slot = 0, .buffer = {buffer.data(), buffer.size().value}})
            .Wait();
    if (read.ok()) continue;
    ++failed;
    EXPECT_THAT(read.error().message, HasSubstr(Paths(*file)[1]));
    EXPECT_THAT(file->Where(Part::kWeight, TileId{i}, 0), HasSubstr(Paths(*file)[1]));
  }
  EXPECT_EQ(failed, 1);
}

TEST_F(StateFileTest, ADriveThatDoesNotAnswerIsNamedWithTheTile) {
  Mutex mutex;
  std::string said;  // guarded by mutex
  aio::EngineOptions options{.simulate = aio::SimulatedDrive{.latency_us = 200'000}};
  options.stall_after = std::chrono::milliseconds(20);
  options.on_stall = [&](const std::string& line) {
    MutexLock lock(mutex);
    said += line + "\n";
  };
  const auto engine = aio::CreateEngine(options).value();
  aio::Engine* const engines[] = {engine.get()};
  const auto file =
      StateFile::Create(layout_, {.folders = {Drive(0)}, .simulated = true}, engines).value();
  const auto buffer = Filled(layout_.RecordBytes(TileId{1}), 0);
  const auto is_named = [&] {
    MutexLock lock(mutex);
    return said.find("(record of tile 1, module " + layout_.module(TileId{1}).name + ")") !=
           std::string::npos;
  };
  EXPECT_TRUE(BecomesTrue([&] {
    const Status read = file->Submit({.part = Part::kRecord,
                                      .tile = TileId{1},
                                      .buffer = {buffer.data(), buffer.size().value}})
                            .Wait();
    return !read.ok() || is_named();
  }));
  EXPECT_TRUE(is_named()) << said;
}

TEST_F(StateFileTest, ARecordThatADriveDoesNotTakeIsNamed) {
  Mutex mutex;
  std::string said;  // guarded by mutex
  aio::EngineOptions options{.simulate = aio::SimulatedDrive{.latency_us = 200'000}};
  options.stall_after = std::chrono::milliseconds(20);
  options.on_stall = [&](const std::string& line) {
    MutexLock lock(mutex);
    said += line + "\n";
  };
  const auto engine = aio::CreateEngine(options).value();
  aio::Engine* const engines[] = {engine.get()};
  const auto file =
      StateFile::Create(layout_, {.folders = {Drive(0)}, .simulated = true}, engines).value();
  const auto is_named = [&] {
    MutexLock lock(mutex);
    return said.find("(record of the commit of step 1)") != std::string::npos;
  };
  const CommitRecord record = WriteTiles(*file, 1, 1);
  EXPECT_TRUE(BecomesTrue([&] { return !file->Commit(record).ok() || is_named(); }));
  EXPECT_TRUE(is_named()) << said;
}

TEST_F(StateFileTest, AStateIsReadWholeOrNotAtAll) {
  std::vector<std::string> paths;
  std::vector<std::string> others;
  for (std::vector<std::string>* of : {&paths, &others}) {
    const auto file = Create(true, 2);
    *of = Paths(*file);
    ASSERT_TRUE(file->Commit(WriteTiles(*file, 1, 1)).ok());
  }
  const auto error = [](const std::vector<std::string>& given) {
    const auto reader = StateReader::Open(given);
    return reader.ok() ? Error{} : reader.error();
  };
  const Error foreign = error({paths[0], others[1]});
  EXPECT_EQ(foreign.code, ErrorCode::kCorruption);
  EXPECT_THAT(foreign.message, HasSubstr(others[1]));
  EXPECT_THAT(error({paths[0], paths[0]}).message, HasSubstr(paths[0]));
  EXPECT_THAT(error({paths[1], paths[0]}).message, HasSubstr(paths[1]));
  EXPECT_THAT(error({paths[0]}).message, HasSubstr("first of 1"));
  std::filesystem::remove(paths[1]);
  const Error missing = error(paths);
  EXPECT_EQ(missing.code, ErrorCode::kCorruption) << "the first file is there, with a commit";
  EXPECT_THAT(missing.message, HasSubstr(paths[1]));
}

TEST_F(StateFileTest, WritesAfterACommitNeverTouchWhatItNames) {
  for (const size_t count : {1, 2}) {
    std::vector<std::string> paths;
    {
      const auto file = Create(true, count);
      paths = Paths(*file);
      ASSERT_TRUE(file->Commit(WriteTiles(*file, 1, 1)).ok());
      // Two updates that no commit follows: both go to the other slot.
      WriteTiles(*file, 2, 2);
      WriteTiles(*file, 3, 3);
    }
    ExpectCommitted(paths, 1, 1);
  }
}

// The thread sanitizer sees what the threads share.
TEST_F(StateFileTest, AnotherThreadMayAskWhereTilesGoWhileACommitIsMade) {
  const auto file = Create(true);
  std::atomic<bool> committed = false;
  std::atomic<bool> asked = false;
  std::thread asking([&] {
    do {
      for (const TileId tile : layout_.Tiles()) {
        const int slot = file->WriteSlot(tile);
        EXPECT_TRUE(slot == 0 || slot == 1) << slot;
      }
      asked = true;
    } while (!committed);
  });
  EXPECT_TRUE(BecomesTrue([&] { return asked.load(); }));
  for (uint8_t step = 1; step <= 3; ++step) {
    EXPECT_TRUE(file->Commit(WriteTiles(*file, step, step)).ok());
  }
  committed = true;
  asking.join();
  for (const TileId tile : layout_.Tiles()) EXPECT_EQ(file->WriteSlot(tile), 1);
}

TEST_F(StateFileTest, WithOneSlotACommitIsTakenBackBeforeTheNextWrite) {
  std::vector<std::string> paths;
  {
    const auto file = Create(false, 2);
    paths = Paths(*file);
    ASSERT_TRUE(file->Commit(WriteTiles(*file, 1, 1)).ok());
    WriteTiles(*file, 2, 2);
  }
  const auto reader = StateReader::Open(paths);
  ASSERT_FALSE(reader.ok());
  EXPECT_EQ(reader.error().code, ErrorCode::kNotFound);
}

TEST_F(StateFileTest, AFileInUseIsRefusedWithItsPath) {
  const auto file = Create(true);
  ASSERT_TRUE(file->Commit(WriteTiles(*file, 1, 1)).ok());
  const auto reader = StateReader::Open(Paths(*file));
  ASSERT_FALSE(reader.ok());
  EXPECT_EQ(reader.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(reader.error().message, HasSubstr(Paths(*file).front()));
}

TEST_F(StateFileTest, AFileWithoutACommitSaysSo) {
  // As a killed run leaves it.
  const auto file = Create(true);
  const std::string copy = folder_ / "copy";
  std::filesystem::copy_file(Paths(*file).front(), copy);
  const auto reader = StateReader::Open({copy});
  ASSERT_FALSE(reader.ok());
  EXPECT_EQ(reader.error().code, ErrorCode::kNotFound);
}

TEST_F(StateFileTest, AFailedCommitIsFinalAndLeavesTheOneBefore) {
  for (const bool retry : {false, true}) {
    std::vector<std::string> paths;
    {
      const auto file = Create(true);
      paths = Paths(*file);
      ASSERT_TRUE(file->Commit(WriteTiles(*file, 1, 1)).ok());
      const CommitRecord second = WriteTiles(*file, 2, 2);
      CommitRecord too_long = second;
      too_long.json.assign(kCommitJsonLimit.value + 1, 'x');
      ASSERT_FALSE(file->Commit(too_long).ok());
      if (retry) {
        EXPECT_FALSE(file->Commit(second).ok());
      }
    }
    ExpectCommitted(paths, 1, 1);
  }
}

TEST_F(StateFileTest, TilesThatWereNotUpdatedTogetherAreNeitherCommittedNorGoneOnFrom) {
  std::vector<std::string> paths;
  {
    const auto file = Create(true);
    paths = Paths(*file);
    ASSERT_TRUE(file->Commit(WriteTiles(*file, 1, 1)).ok());
    CommitRecord mixed = WriteTiles(*file, 2, 2);
    mixed.tiles.back().version = 1;
    EXPECT_DEATH(static_cast<void>(file->Commit(mixed)), "updated together");
    // As a program that does not look would have written it.
    mixed.sequence = 2;
    const std::vector<std::byte> bytes = EncodeCommit({file->uuid(), layout_}, mixed);
    const FileOffset place = PlanState(file->uuid(), layout_, {}, 0).geometry.commit_offset[0];
    Overwrite(paths[0], place.value,
              std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  }
  aio::Engine* const engines[] = {engines_.front().get()};
  const auto opened = StateFile::Open(paths, layout_, /*require_direct=*/false, engines);
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.error().code, ErrorCode::kCorruption);
  EXPECT_THAT(opened.error().message,
              AllOf(HasSubstr("the commit of step 2"), HasSubstr("updated together")));
}

TEST_F(StateFileTest, NoCommitIsMadeWhereAFileIsNotWhatItWasAndTheErrorNamesIt) {
  namespace fs = std::filesystem;
  struct Damage {
    const char* name;
    std::function<void(const fs::path&)> make;
    const char* message;
  };
  const Damage damages[] = {
      {"deleted", [](const fs::path& path) { fs::remove(path); }, "deleted"},
      {"moved", [](const fs::path& path) { fs::rename(path, path.string() + ".away"); }, "moved"},
      {"replaced",
       [](const fs::path& path) {
         fs::rename(path, path.string() + ".away");
         fs::copy_file(path.string() + ".away", path);
       },
       "another file is in its place"},
      {"emptied", [](const fs::path& path) { fs::resize_file(path, 0); }, "was cut from"},
      {"cut", [](const fs::path& path) { fs::resize_file(path, fs::file_size(path) - 1); },
       "was cut from"},
      {"its heads lost",
       [](const fs::path& path) {
         Overwrite(path, 0, std::string(4096, '\0'));
         Overwrite(path, fs::file_size(path) - 4096, std::string(4096, '\0'));
       },
       "head"},
      {"a bit of each head lost",
       [](const fs::path& path) {
         Overwrite(path, 100, "x");
         Overwrite(path, fs::file_size(path) - 100, "x");
       },
       "head"},
      {"emptied and written again",
       [](const fs::path& path) {
         const uintmax_t size = fs::file_size(path);
         fs::resize_file(path, 0);
         fs::resize_file(path, size);
       },
       "head"},
  };
  for (const size_t path : {0, 1}) {
    for (const Damage& damage : damages) {
      SCOPED_TRACE(fmt::format("path {}, {}", path, damage.name));
      const auto file = Create(true, 2);
      ASSERT_TRUE(file->Commit(WriteTiles(*file, 1, 1)).ok());
      ASSERT_TRUE(file->CheckCommit().ok());
      const CommitRecord second = WriteTiles(*file, 2, 2);
      damage.make(Paths(*file)[path]);
      const Status committed = file->Commit(second);
      ASSERT_FALSE(committed.ok());
      EXPECT_THAT(committed.error().message, HasSubstr(Paths(*file)[path]));
      EXPECT_THAT(committed.error().message, HasSubstr(damage.message));
      const Status before = file->CheckCommit();
      ASSERT_FALSE(before.ok()) << "the first commit is said to stand";
      EXPECT_THAT(before.error().message, HasSubstr(damage.message));
    }
  }
}

TEST_F(StateFileTest, ACommitIsLookedForOnTheDrive) {
  const auto file = Create(true);
  EXPECT_FALSE(file->CheckCommit().ok()) << "there is none";
  ASSERT_TRUE(file->Commit(WriteTiles(*file, 1, 1)).ok());
  ASSERT_TRUE(file->Commit(WriteTiles(*file, 2, 2)).ok());
  EXPECT_TRUE(file->CheckCommit().ok());
  const std::string path = Paths(*file).front();
  const FileOffset newest = PlanState(file->uuid(), layout_, {}, 0).geometry.commit_offset[0];
  Overwrite(path, newest.value + 60, "x");
  const Status lost = file->CheckCommit();
  ASSERT_FALSE(lost.ok());
  EXPECT_EQ(lost.error().code, ErrorCode::kCorruption);
  EXPECT_THAT(lost.error().message, AllOf(HasSubstr("newest commit"), HasSubstr(path)));
}

}  // namespace
}  // namespace penstock::offload
