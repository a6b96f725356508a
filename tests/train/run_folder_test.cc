#include "train/run_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <optional>
#include <string>

#include "tests/train/temp_folder.h"
#include "train/log.h"

namespace penstock::train {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

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
  return {.version = "0.1.0",
          .state = {.paths = state_paths, .uuid = "0123"},
          .model_json = "{\"model_type\": \"gpt2\",\n \"note\": \"\\u00e9 \xc3\xa9\"}",
          .data_path = "/data/text",
          .data_order = "shuffle",
          .device = "cpu",
          .seed = 18446744073709551615U,
          .sequence_length = 64};
}

TEST_F(RunFolderTest, IsMadeWithTheFoldersAboveIt) {
  RunFolder folder = Make("a/b/run");
  folder.Keep();
  EXPECT_TRUE(fs::is_directory(Path("a/b/run")));
  EXPECT_TRUE(fs::path(folder.path()).is_absolute());
}

TEST_F(RunFolderTest, ThatExistsIsRefusedAndLeftAlone) {
  base_.Write("run/metrics.jsonl", "rows");
  const Result<RunFolder> folder = RunFolder::Create(Path("run"));
  ASSERT_FALSE(folder.ok());
  EXPECT_EQ(ExitCode(folder.error().code), 2);
  EXPECT_THAT(folder.error().message, HasSubstr("name another folder, or remove it"));
  EXPECT_EQ(base_.Read("run/metrics.jsonl"), "rows");
}

TEST_F(RunFolderTest, ThatIsADanglingLinkIsRefused) {
  fs::create_symlink(Path("nowhere"), Path("run"));
  EXPECT_FALSE(RunFolder::Create(Path("run")).ok());
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

TEST_F(RunFolderTest, InfoReadsBackAsItWasWritten) {
  const RunFolder folder = Make("run");
  const RunInfo info = SomeInfo({"/nvme/0.state", "/other/1.state"});
  ASSERT_TRUE(folder.WriteInfo(info).ok());
  const Result<RunInfo> read = ReadRunInfo(Path("run"));
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->version, info.version);
  EXPECT_EQ(read->state.paths, info.state.paths);
  EXPECT_EQ(read->state.uuid, info.state.uuid);
  EXPECT_EQ(read->model_json, info.model_json);
  EXPECT_EQ(read->data_path, info.data_path);
  EXPECT_EQ(read->data_order, info.data_order);
  EXPECT_EQ(read->device, info.device);
  EXPECT_EQ(read->seed, info.seed);
  EXPECT_EQ(read->sequence_length, info.sequence_length);
  EXPECT_THAT(base_.List("run"), ElementsAre("run.json"));
}

TEST_F(RunFolderTest, StateInsideTheFolderMovesWithIt) {
  RunFolder folder = Make("run");
  folder.Keep();
  ASSERT_TRUE(folder.WriteInfo(SomeInfo({folder.path() + "/my.state", "/nvme/1.state"})).ok());
  fs::rename(Path("run"), Path("elsewhere"));
  const Result<RunInfo> read = ReadRunInfo(Path("elsewhere"));
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_THAT(read->state.paths, ElementsAre(Path("elsewhere/my.state"), "/nvme/1.state"));
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

TEST_F(RunFolderTest, DamagedInfoIsCorruption) {
  RunFolder folder = Make("run");
  folder.Keep();
  ASSERT_TRUE(folder.WriteInfo(SomeInfo({"/nvme/0.state", "/other/1.state"})).ok());
  const std::string whole = base_.Read("run/run.json");
  for (const std::string& text :
       {std::string(), whole.substr(0, whole.size() / 2), std::string("[]"), std::string("{}"),
        std::string("{\"version\": 99}")}) {
    base_.Write("run/run.json", text);
    const Result<RunInfo> read = ReadRunInfo(Path("run"));
    ASSERT_FALSE(read.ok()) << text;
    EXPECT_EQ(read.error().code, ErrorCode::kCorruption) << text;
  }
}

}  // namespace
}  // namespace penstock::train
