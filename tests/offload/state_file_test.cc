#include "offload/state_file.h"

#include <gmock/gmock.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>

#include "base/mapping.h"
#include "base/mutex.h"
#include "offload/state_reader.h"
#include "tests/aio/wrapped_engine.h"
#include "tests/offload/support.h"

namespace penstock::offload {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::HasSubstr;

/// Notes where in a file each write begins.
class WritesEngine : public aio::WrappedEngine {
 public:
  using WrappedEngine::WrappedEngine;
  aio::Ticket Submit(aio::Request request) override {
    if (request.operation == aio::Operation::kWrite) {
      MutexLock lock(mutex_);
      writes_.push_back(request.offset);
    }
    return WrappedEngine::Submit(std::move(request));
  }
  std::vector<FileOffset> writes() {
    MutexLock lock(mutex_);
    return writes_;
  }

 private:
  Mutex mutex_;
  std::vector<FileOffset> writes_ GUARDED_BY(mutex_);
};

/// Keeps a copy of the drives as they are before each write.
class CopyingEngine : public aio::WrappedEngine {
 public:
  CopyingEngine(std::unique_ptr<aio::Engine> base, std::function<void()> copy)
      : WrappedEngine(std::move(base)), copy_(std::move(copy)) {}
  aio::Ticket Submit(aio::Request request) override {
    if (request.operation == aio::Operation::kWrite) copy_();
    return WrappedEngine::Submit(std::move(request));
  }

 private:
  std::function<void()> copy_;
};

class StateFileTest : public FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    for (const char* name : {"drive0", "drive1", "drive2"}) {
      std::filesystem::create_directory(folder_ / name);
    }
  }

  /// `faults` are those of the last path's drive.
  Result<std::unique_ptr<StateFile>> TryCreate(bool durable, size_t paths,
                                               const std::optional<aio::FaultPlan>& faults = {}) {
    StateFileOptions options{.durable = durable};
    std::vector<aio::Engine*> engines;
    for (size_t i = 0; i < paths; ++i) {
      options.folders.push_back(Drive(i));
      aio::EngineOptions engine{.kind = aio::EngineKind::kThreads};
      if (i + 1 == paths) engine.faults = faults;
      engines_.push_back(std::move(aio::CreateEngine(engine)).value());
      engines.push_back(engines_.back().get());
    }
    options.probe = [this](aio::Engine& engine, const aio::File&, Bytes) -> Result<double> {
      for (size_t i = 0; i < engines_.size(); ++i) {
        if (engines_[i].get() == &engine) return speeds_.at(i % speeds_.size());
      }
      return 0.0;
    };
    return StateFile::Create(layout_, options, engines);
  }

  std::unique_ptr<StateFile> Create(bool durable, size_t paths = 1,
                                    const std::optional<aio::FaultPlan>& faults = {}) {
    auto file = TryCreate(durable, paths, faults);
    EXPECT_TRUE(file.ok()) << file.error().message;
    return std::move(file).value();
  }

  std::string Drive(size_t i) const { return folder_ / ("drive" + std::to_string(i)); }

  bool DrivesAreEmpty() const {
    for (size_t i = 0; i < 3; ++i) {
      if (!std::filesystem::is_empty(Drive(i))) return false;
    }
    return true;
  }

  static std::vector<std::string> Paths(const StateFile& file) {
    std::vector<std::string> paths;
    for (const PathShare& share : file.Shares()) paths.push_back(share.path);
    return paths;
  }

  /// Writes every tile filled with `value` as `version`, and returns what a commit of it says.
  CommitRecord WriteTiles(StateFile& file, uint8_t value, uint64_t version) {
    CommitRecord record{.step = version};
    EXPECT_TRUE(file.PrepareWrites().ok());
    for (const TileId tile : layout_.Tiles()) {
      const int slot = file.WriteSlot(tile);
      const auto weight = Filled(layout_.WeightBytes(tile), value);
      const auto states = Filled(layout_.RecordBytes(tile), value);
      Write(file, Part::kWeight, tile, slot, weight);
      Write(file, Part::kRecord, tile, slot, states);
      record.tiles.push_back(
          {.version = version,
           .checksums = ChecksumsOf(file.uuid(), layout_, tile, version,
                                    {weight.data(), layout_.WeightBytes(tile).value},
                                    {states.data(), layout_.RecordBytes(tile).value}),
           .slot = static_cast<uint32_t>(slot)});
    }
    return record;
  }

  static Mapping Filled(Bytes size, uint8_t value) {
    Mapping mapping = std::move(Mapping::Create(size)).value();
    std::memset(mapping.data(), value, size.value);
    return mapping;
  }

  static void Write(StateFile& file, Part part, TileId tile, int slot, const Mapping& bytes) {
    const Status written = file.Submit({.part = part,
                                        .tile = tile,
                                        .slot = slot,
                                        .operation = aio::Operation::kWrite,
                                        .buffer = {bytes.data(), bytes.size().value}})
                               .Wait();
    EXPECT_TRUE(written.ok()) << written.error().message;
  }

  static void Overwrite(const std::string& path, uint64_t offset, const std::string& bytes) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(offset));
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    EXPECT_TRUE(file.good());
  }

  void ExpectCommitted(const std::vector<std::string>& paths, uint64_t step, uint8_t value) {
    const auto reader = StateReader::Open(paths);
    ASSERT_TRUE(reader.ok()) << reader.error().message;
    EXPECT_EQ((*reader)->commit().step, step);
    for (uint32_t i = 0; i < layout_.tiles.size(); ++i) {
      StateReader::TileBytes bytes;
      const Status read = (*reader)->ReadTile(TileId{i}, bytes);
      ASSERT_TRUE(read.ok()) << read.error().message;
      EXPECT_EQ(bytes.weight.front(), std::byte{value});
      EXPECT_EQ(bytes.record.back(), std::byte{value});
    }
  }

  const ShardLayout layout_ = SmallLayout(DType::kBFloat16);
  std::vector<std::unique_ptr<aio::Engine>> engines_;
  std::vector<double> speeds_ = {1};  ///< of the drives, in turn
};

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

TEST_F(StateFileTest, FilesAreNamedAfterTheStateAndTheIndexOfTheirPath) {
  const auto file = Create(true, 3);
  const std::string name = "/penstock-" + ToString(file->uuid());
  EXPECT_THAT(Paths(*file), ElementsAre(Drive(0) + name + ".state", Drive(1) + name + ".1.state",
                                        Drive(2) + name + ".2.state"));
}

TEST_F(StateFileTest, SharesFollowTheSpeedOfTheDrives) {
  // Tiles of 2, 1, 1 and 1 blocks.
  speeds_ = {3e9, 1e9};
  std::vector<std::string> paths;
  {
    const auto file = Create(true, 2);
    const std::vector<PathShare> shares = file->Shares();
    EXPECT_DOUBLE_EQ(shares[0].share, 0.8);
    EXPECT_DOUBLE_EQ(shares[1].share, 0.2);
    EXPECT_EQ(shares[1].bytes_a_second, 1e9);
    ASSERT_TRUE(file->Commit(WriteTiles(*file, 1, 1)).ok());
    paths = Paths(*file);
  }
  const auto head_bytes = [&](size_t path) {
    return std::filesystem::file_size(paths[path]) - (path == 0 ? 4 : 1) * 24 * kBlockElements;
  };
  EXPECT_EQ(head_bytes(0), head_bytes(1)) << "each file holds its own tiles and no others";
  const auto reader = StateReader::Open(paths);
  ASSERT_TRUE(reader.ok());
  EXPECT_THAT((*reader)->Shares(), ElementsAre(0.8, 0.2));
}

TEST_F(StateFileTest, OneDriveIsNotMeasured) {
  speeds_.clear();
  EXPECT_EQ(Create(true, 1)->Shares().front().share, 1);
}

TEST_F(StateFileTest, ADriveThatCannotBeMeasuredLeavesOneErrorAndNoFile) {
  aio::FaultPlan broken{.faults = {{.operation = aio::Operation::kWrite}}};
  StateFileOptions options{.folders = {Drive(0), Drive(1)}};
  const auto good = std::move(aio::CreateEngine({.kind = aio::EngineKind::kThreads})).value();
  const auto bad =
      std::move(aio::CreateEngine({.kind = aio::EngineKind::kThreads, .faults = broken})).value();
  aio::Engine* const engines[] = {good.get(), bad.get()};
  const auto file = StateFile::Create(layout_, options, engines);
  ASSERT_FALSE(file.ok());
  EXPECT_THAT(file.error().message, HasSubstr(Drive(1)));
  EXPECT_TRUE(DrivesAreEmpty());
}

TEST_F(StateFileTest, TheHeaderIsWrittenAfterAllElseThatCreationWritesAndAMarkBefore) {
  std::vector<std::unique_ptr<WritesEngine>> engines;
  std::vector<aio::Engine*> pointers;
  for (size_t i = 0; i < 2; ++i) {
    engines.push_back(std::make_unique<WritesEngine>(
        std::move(aio::CreateEngine({.kind = aio::EngineKind::kThreads})).value()));
    pointers.push_back(engines.back().get());
  }
  const auto file = StateFile::Create(layout_, {.folders = {Drive(0), Drive(1)}}, pointers);
  ASSERT_TRUE(file.ok()) << file.error().message;
  for (const auto& engine : engines) {
    std::vector<FileOffset> writes = engine->writes();
    // Between them come the measured blocks, the layout, the descriptors and the commit places.
    ASSERT_GE(writes.size(), 5);
    EXPECT_EQ(writes.front(), FileOffset{});
    EXPECT_EQ(writes.back(), FileOffset{});
    writes.erase(writes.begin());
    writes.pop_back();
    EXPECT_THAT(writes, Each(Ge(FileOffset{kHeaderBytes.value})));
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
  EXPECT_EQ((*reader)->commit().step, 1);
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

TEST_F(StateFileTest, WhatAKillAtAnyWriteOfTheCreationLeavesIsToldFromDamage) {
  namespace fs = std::filesystem;
  for (const size_t count : {1, 2}) {
    int copies = 0;
    const auto copy = [&] {
      const std::string to = fmt::format("{}/killed{}", folder_.string(), copies++);
      fs::create_directory(to);
      for (size_t i = 0; i < count; ++i) fs::copy(Drive(i), to);
    };
    std::vector<std::unique_ptr<CopyingEngine>> engines;
    std::vector<aio::Engine*> pointers;
    StateFileOptions options;
    for (size_t i = 0; i < count; ++i) {
      options.folders.push_back(Drive(i));
      engines.push_back(std::make_unique<CopyingEngine>(
          std::move(aio::CreateEngine({.kind = aio::EngineKind::kThreads})).value(), copy));
      pointers.push_back(engines.back().get());
    }
    const auto file = StateFile::Create(layout_, options, pointers);
    ASSERT_TRUE(file.ok()) << file.error().message;
    copy();
    for (int i = 0; i < copies; ++i) {
      SCOPED_TRACE(fmt::format("{} paths, write {} of {}", count, i, copies));
      std::vector<std::string> left;
      for (const std::string& path : Paths(**file)) {
        left.push_back(
            fmt::format("{}/killed{}/{}", folder_.string(), i, fs::path(path).filename().string()));
      }
      const auto reader = StateReader::Open(left);
      ASSERT_FALSE(reader.ok());
      if (i == 0) {
        EXPECT_EQ(fs::file_size(left.front()), 0) << "before its mark a file is empty";
        continue;
      }
      EXPECT_EQ(reader.error().code, ErrorCode::kNotFound) << reader.error().message;
      // Zeros in its place are no mark.
      Overwrite(left.front(), 0, std::string(kHeaderBytes.value, '\0'));
      EXPECT_EQ(StateReader::Open(left).error().code, ErrorCode::kCorruption);
    }
    for (int i = 0; i < copies; ++i)
      fs::remove_all(fmt::format("{}/killed{}", folder_.string(), i));
  }
}

TEST_F(StateFileTest, FilesThatNeverHeldACommitAreRemovedAtTheEnd) {
  for (const size_t count : {1, 3}) {
    Create(true, count).reset();
    EXPECT_TRUE(DrivesAreEmpty());
  }
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
      {"its head lost", [](const fs::path& path) { Overwrite(path, 0, std::string(4096, '\0')); },
       "head"},
      {"a bit of its head lost", [](const fs::path& path) { Overwrite(path, 100, "x"); }, "head"},
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

TEST_F(StateFileTest, APathThatLeadsNowhereMeansMovedAndOneThatCannotBeFollowedIsNamedAsThat) {
  namespace fs = std::filesystem;
  struct Damage {
    std::function<void(const fs::path&)> take_place;  ///< of the folder, which was moved away
    ErrorCode code;
    const char* message;
  };
  const Damage damages[] = {
      {[](const fs::path&) {}, ErrorCode::kUnavailable, "was moved away"},
      {[](const fs::path& folder) { std::ofstream(folder.string()) << "x"; },
       ErrorCode::kUnavailable, "was moved away"},
      {[](const fs::path& folder) { fs::create_symlink(folder, folder); }, ErrorCode::kIo,
       "looking at"},
  };
  for (const Damage& damage : damages) {
    SCOPED_TRACE(damage.message);
    const auto file = Create(true);
    ASSERT_TRUE(file->Commit(WriteTiles(*file, 1, 1)).ok());
    const fs::path folder = fs::path(Paths(*file).front()).parent_path();
    fs::rename(folder, folder.string() + ".away");
    damage.take_place(folder);
    const Status found = file->CheckCommit();
    fs::remove(folder);
    fs::rename(folder.string() + ".away", folder);
    ASSERT_FALSE(found.ok());
    EXPECT_EQ(found.error().code, damage.code) << found.error().message;
    EXPECT_THAT(found.error().message, HasSubstr(damage.message));
    EXPECT_TRUE(file->CheckCommit().ok()) << "it is back";
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

TEST_F(StateFileTest, AFileThatTookTheNameIsNotRemovedAtTheEnd) {
  auto file = Create(true);
  const std::string path = Paths(*file).front();
  std::filesystem::rename(path, path + ".away");
  std::filesystem::copy_file(path + ".away", path);
  file.reset();
  EXPECT_TRUE(std::filesystem::exists(path));
}

TEST_F(StateFileTest, AMissingFolderLeavesOneClearError) {
  std::filesystem::remove(Drive(1));
  const auto file = TryCreate(true, 2);
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(file.error().message, HasSubstr(Drive(1)));
  EXPECT_TRUE(std::filesystem::is_empty(Drive(0)));
}

TEST_F(StateFileTest, SomethingElseIsNotTakenForAStateFile) {
  const std::string path = folder_ / "other";
  FILE* other = std::fopen(path.c_str(), "w");
  ASSERT_NE(other, nullptr);
  for (int i = 0; i < 5000; ++i) std::fputc('x', other);
  std::fclose(other);
  const auto reader = StateReader::Open({path});
  ASSERT_FALSE(reader.ok());
  EXPECT_EQ(reader.error().code, ErrorCode::kCorruption);
}

}  // namespace
}  // namespace penstock::offload
