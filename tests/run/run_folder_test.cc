#include "run/run_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <optional>
#include <string>

#include "tests/temp_folder.h"
#include "train/process/log.h"

namespace penstock::train {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class RunFolderTest : public ::testing::Test {
 protected:
  RunFolder Make(const std::string& name) {
    Result<RunFolder> folder = RunFolder::Create(Path(name));
    EXPECT_TRUE(folder.ok()) << folder.error().message;
    return std::move(folder).value();
  }

  std::string Path(const std::string& name) const { return base_.Path(name); }

  const TempFolder base_;
};

RunInfo SomeInfo(const std::vector<std::string>& state_paths) {
  return {.program = "0.1.0",
          .run_uuid = "0123",
          .place = "/runs/first",
          .state = StateFiles::OfOneRank(state_paths, "0123"),
          .training = {.model_json = "{}",
                       .data_path = "/data/text",
                       .data_order = "shuffle",
                       .seed = 1,
                       .sequence_length = 64,
                       .device = "cpu"}};
}

TEST_F(RunFolderTest, IsMadeWithTheFoldersAboveIt) {
  RunFolder folder = Make("a/b/run");
  folder.Keep();
  EXPECT_TRUE(fs::is_directory(Path("a/b/run")));
  EXPECT_TRUE(fs::path(folder.path()).is_absolute());
}

TEST_F(RunFolderTest, RowsAreCopiedUpToAStepDespiteAnythingAfterThem) {
  const std::string rows = "{\"step\": 1}\n{\"step\": 2}\n";
  base_.Write("from/metrics.jsonl", rows + "{\"step\": 3}\n");
  fs::resize_file(Path("from/metrics.jsonl"), 1 << 20);
  base_.Write("to/metrics.jsonl", "others");
  const Result<Folder> from = Folder::Open(Path("from"));
  const Result<Folder> to = Folder::Open(Path("to"));
  ASSERT_TRUE(from.ok() && to.ok());
  ASSERT_TRUE(CopyRows(*from, *to, 2).ok());
  EXPECT_EQ(base_.Read("to/metrics.jsonl"), rows);
}

TEST_F(RunFolderTest, ThatExistsIsRefusedAndLeftAlone) {
  base_.Write("run/metrics.jsonl", "rows");
  const Result<RunFolder> folder = RunFolder::Create(Path("run"));
  ASSERT_FALSE(folder.ok());
  EXPECT_EQ(ExitCode(folder.error().code), 2);
  EXPECT_THAT(folder.error().message, AllOf(HasSubstr("no run is in it; name another folder"),
                                            Not(HasSubstr("remove")), Not(HasSubstr("--resume"))));
  EXPECT_EQ(base_.Read("run/metrics.jsonl"), "rows");
}

TEST_F(RunFolderTest, ThatExistsIsToBeRemovedOnlyIfItIsARunOrEmpty) {
  base_.Write("run/run.json", "{}");
  EXPECT_TRUE(FailsWith(RunFolder::Create(Path("run")), ErrorCode::kInvalidArgument,
                        {"--resume", "remove it (penstock clean)"}));
  fs::create_directory(Path("empty"));
  EXPECT_TRUE(FailsWith(RunFolder::Create(Path("empty")), ErrorCode::kInvalidArgument,
                        {"is empty; remove it (rmdir)"}));
}

TEST_F(RunFolderTest, ThatIsNoRunIsNotOpenedAndGetsNoLock) {
  base_.Write("mine/thesis.tex", "text");
  EXPECT_TRUE(FailsWith(RunFolder::Open(Path("mine")), ErrorCode::kNotFound, {"run.json"}));
  EXPECT_THAT(base_.List("mine"), ElementsAre("thesis.tex"));
}

TEST_F(RunFolderTest, ThatIsADanglingLinkIsRefused) {
  fs::create_symlink(Path("nowhere"), Path("run"));
  EXPECT_FALSE(RunFolder::Create(Path("run")).ok());
}

TEST_F(RunFolderTest, ThatARunHasOnlyBegunIsUsedThroughALink) {
  base_.Write("begun/run.lock", "");
  fs::create_symlink(Path("begun"), Path("run"));
  const Result<RunFolder> folder = RunFolder::Create(Path("run"));
  ASSERT_TRUE(folder.ok()) << folder.error().message;
  EXPECT_EQ(folder->path(), fs::canonical(Path("begun")));
}

TEST_F(RunFolderTest, BelowAFileIsRefused) {
  base_.Write("file", "x");
  const Result<RunFolder> folder = RunFolder::Create(Path("file/run"));
  ASSERT_FALSE(folder.ok());
  EXPECT_EQ(ExitCode(folder.error().code), 3);
}

TEST_F(RunFolderTest, IsRemovedAgainUnlessItIsKept) {
  { const RunFolder folder = Make("failed"); }
  EXPECT_FALSE(fs::exists(Path("failed")));
  {
    RunFolder folder = Make("kept");
    folder.Keep();
  }
  EXPECT_TRUE(fs::exists(Path("kept")));
}

TEST_F(RunFolderTest, IsRemovedWithWhatTheRunPutThereAndNothingElse) {
  {
    const RunFolder folder = Make("failed");
    ASSERT_TRUE(folder.WriteInfo(SomeInfo({"/nvme/0.state"})).ok());
    ASSERT_TRUE(folder.CreateRows().ok());
    base_.Write("failed/run.json.tmp-17", "");
    for (const char* name : {"numerics.jsonl", "headroom.jsonl", "overflow.json"}) {
      base_.Write(std::string("failed/") + name, "");
    }
    base_.Write("failed/snapshots/.kept.request", "");
  }
  EXPECT_FALSE(fs::exists(Path("failed")));
  {
    const RunFolder folder = Make("failed");
    ASSERT_TRUE(folder.WriteInfo(SomeInfo({"/nvme/0.state"})).ok());
    base_.Write("failed/notes.txt", "mine");
    base_.Write("failed/summary.json.tmp-old", "mine");
    fs::create_symlink(Path("failed/notes.txt"), Path("failed/metrics.jsonl"));
  }
  EXPECT_THAT(base_.List("failed"),
              ElementsAre("metrics.jsonl", "notes.txt", "summary.json.tmp-old"));
}

TEST_F(RunFolderTest, AFolderThatTookItsPlaceStays) {
  {
    const RunFolder folder = Make("run");
    fs::rename(Path("run"), Path("moved"));
    fs::create_directory(Path("run"));
  }
  EXPECT_TRUE(fs::exists(Path("run")));
}

TEST_F(RunFolderTest, ThatIsGoneOrLostItsFilesIsNotWhole) {
  for (const char* name : {"run.json", "metrics.jsonl"}) {
    RunFolder folder = Make(fmt::format("run-{}", name));
    ASSERT_TRUE(folder.WriteInfo(SomeInfo({"/nvme/0.state"})).ok());
    ASSERT_TRUE(folder.CreateRows().ok());
    ASSERT_TRUE(folder.Watch().ok());
    EXPECT_TRUE(folder.CheckWhole().ok());
    const std::string file = folder.folder().PathOf(name);
    fs::rename(file, file + ".aside");
    EXPECT_TRUE(FailsWith(folder.CheckWhole(), ErrorCode::kNotFound, {file, "removed"}));
    fs::copy_file(file + ".aside", file);
    EXPECT_TRUE(FailsWith(folder.CheckWhole(), ErrorCode::kNotFound, {file, "replaced"}));
    fs::rename(file + ".aside", file);
    EXPECT_TRUE(folder.CheckWhole().ok());
    fs::rename(folder.path(), Path("aside"));
    EXPECT_TRUE(FailsWith(folder.CheckWhole(), ErrorCode::kNotFound, {folder.path(), "removed"}));
    fs::create_directory(folder.path());
    EXPECT_TRUE(FailsWith(folder.CheckWhole(), ErrorCode::kNotFound, {folder.path(), "replaced"}));
    fs::remove_all(Path("aside"));
  }
}

TEST_F(RunFolderTest, ThatCannotBeSeenIsNotSaidToBeGone) {
  fs::create_directory(Path("drive"));
  {
    RunFolder folder = Make("drive/run");
    ASSERT_TRUE(folder.WriteInfo(SomeInfo({"/nvme/0.state"})).ok());
    ASSERT_TRUE(folder.CreateRows().ok());
    ASSERT_TRUE(folder.Watch().ok());
    fs::rename(Path("drive"), Path("aside"));
    fs::create_symlink(Path("drive"), Path("drive"));
    EXPECT_TRUE(FailsWith(folder.CheckWhole(), ErrorCode::kIo, {folder.path()}));
    fs::remove(Path("drive"));
    fs::rename(Path("aside"), Path("drive"));
    EXPECT_TRUE(folder.CheckWhole().ok());
  }
}

TEST_F(RunFolderTest, MovingItMovesTheDutyToRemoveIt) {
  std::optional<RunFolder> outer;
  {
    RunFolder inner = Make("moved");
    outer.emplace(std::move(inner));
  }
  EXPECT_TRUE(fs::exists(Path("moved")));
  outer.reset();
  EXPECT_FALSE(fs::exists(Path("moved")));
}

TEST_F(RunFolderTest, StateInsideTheFolderMovesWithIt) {
  RunFolder folder = Make("run");
  folder.Keep();
  ASSERT_TRUE(folder.WriteInfo(SomeInfo({folder.path() + "/my.state", "/nvme/1.state"})).ok());
  fs::rename(Path("run"), Path("elsewhere"));
  const Result<RunInfo> read = ReadRunInfo(Path("elsewhere"));
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_THAT(read->state->all(), ElementsAre(Path("elsewhere/my.state"), "/nvme/1.state"));
}

TEST_F(RunFolderTest, WhatIsNoRunIsNotFound) {
  fs::create_directories(Path("empty"));
  for (const char* name : {"empty", "missing"}) {
    const Result<RunInfo> read = ReadRunInfo(Path(name));
    ASSERT_FALSE(read.ok());
    EXPECT_EQ(read.error().code, ErrorCode::kNotFound);
    EXPECT_THAT(read.error().message, HasSubstr(Path(name)));
  }
}

}  // namespace
}  // namespace penstock::train
