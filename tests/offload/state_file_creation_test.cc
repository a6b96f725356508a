// State files: how they are made, named, opened and removed.
#include <gmock/gmock.h>

#include "tests/offload/state_file_support.h"

namespace penstock::offload {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::HasSubstr;

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
      // Zeros in its place are no mark: then what counts is whether there is a second head.
      Overwrite(left.front(), 0, std::string(kHeaderBytes.value, '\0'));
      const auto without_mark = StateReader::Open(left);
      ASSERT_FALSE(without_mark.ok());
      EXPECT_EQ(without_mark.error().code, ErrorCode::kCorruption);
      const bool second =
          without_mark.error().message.find("neither place holds a commit") != std::string::npos;
      EXPECT_TRUE(second || i + 3 < copies) << "a second head comes before the first";
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
