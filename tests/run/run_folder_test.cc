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
  return {.version = "0.1.0",
          .run_uuid = "0123",
          .state = StateFiles::OfOneRank(state_paths, "0123"),
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

TEST_F(RunFolderTest, RowsAreCopiedUpToAStepWhateverLiesBehindThem) {
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

TEST_F(RunFolderTest, InfoReadsBackAsItWasWritten) {
  const RunFolder folder = Make("run");
  const RunInfo info = SomeInfo({"/nvme/0.state", "/other/1.state"});
  ASSERT_TRUE(folder.WriteInfo(info).ok());
  const Result<RunInfo> read = ReadRunInfo(Path("run"));
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->version, info.version);
  EXPECT_EQ(read->state.paths(), info.state.paths());
  EXPECT_EQ(read->state.uuid, info.state.uuid);
  EXPECT_EQ(read->model_json, info.model_json);
  EXPECT_EQ(read->data_path, info.data_path);
  EXPECT_EQ(read->data_order, info.data_order);
  EXPECT_EQ(read->device, info.device);
  EXPECT_EQ(read->seed, info.seed);
  EXPECT_EQ(read->sequence_length, info.sequence_length);
  EXPECT_THAT(base_.List("run"), ElementsAre("run.json", "run.lock"));
}

TEST_F(RunFolderTest, WhatWasChangedIsInInfoOnlyIfAnythingWas) {
  RunFolder folder = Make("run");
  folder.Keep();
  RunInfo info = SomeInfo({"/nvme/0.state"});
  ASSERT_TRUE(folder.WriteInfo(info).ok());
  EXPECT_THAT(base_.Read("run/run.json"), Not(HasSubstr("changes")));
  info.changes = {{.step = 7, .key = "gradient_clipping", .before = "1.0", .after = "0.5"}};
  ASSERT_TRUE(folder.WriteInfo(info).ok());
  EXPECT_EQ(ReadRunInfo(folder.folder())->changes, info.changes);
  std::string text = base_.Read("run/run.json");
  base_.Write("run/run.json", text.replace(text.find("\"step\": 7"), 9, "\"step\": -7"));
  EXPECT_EQ(ReadRunInfo(folder.folder()).error().code, ErrorCode::kCorruption);
}

TEST_F(RunFolderTest, StepsThatArePassedOverAreInInfoOnlyIfThereAreAny) {
  RunFolder folder = Make("run");
  folder.Keep();
  RunInfo info = SomeInfo({"/nvme/0.state"});
  ASSERT_TRUE(folder.WriteInfo(info).ok());
  EXPECT_THAT(base_.Read("run/run.json"), Not(HasSubstr("skip_steps")));
  info.skips = {{7, 9}, {11, 11}};
  ASSERT_TRUE(folder.WriteInfo(info).ok());
  EXPECT_EQ(ReadRunInfo(folder.folder())->skips, info.skips);
  const std::string text = base_.Read("run/run.json");
  for (const char* last : {"6", "-1", "281474976710657"}) {
    std::string damaged = text;
    base_.Write("run/run.json", damaged.replace(text.find("\"last\": 9") + 8, 1, last));
    EXPECT_EQ(ReadRunInfo(folder.folder()).error().code, ErrorCode::kCorruption) << last;
  }
}

TEST_F(RunFolderTest, OnlyAnAutomaticSnapshotHasItsNumber) {
  RunFolder folder = Make("run");
  folder.Keep();
  RunInfo info = SomeInfo({"/nvme/0.state"});
  ASSERT_TRUE(folder.WriteInfo(info).ok());
  EXPECT_THAT(base_.Read("run/run.json"), Not(HasSubstr("automatic")));
  info.automatic = 7;
  ASSERT_TRUE(folder.WriteInfo(info).ok());
  EXPECT_EQ(ReadRunInfo(folder.folder())->automatic, 7U);
}

TEST_F(RunFolderTest, ARunOfBeforeTheRunUuidHasThatOfItsState) {
  RunFolder folder = Make("run");
  folder.Keep();
  RunInfo info = SomeInfo({"/nvme/0.state"});
  info.run_uuid = "4567";
  ASSERT_TRUE(folder.WriteInfo(info).ok());
  EXPECT_EQ(ReadRunInfo(folder.folder())->run_uuid, "4567");
  std::string text = base_.Read("run/run.json");
  const std::string line = "  \"run_uuid\": \"4567\",\n";
  ASSERT_NE(text.find(line), std::string::npos);
  base_.Write("run/run.json", text.erase(text.find(line), line.size()));
  EXPECT_EQ(ReadRunInfo(folder.folder())->run_uuid, "0123");
}

TEST_F(RunFolderTest, StateInsideTheFolderMovesWithIt) {
  RunFolder folder = Make("run");
  folder.Keep();
  ASSERT_TRUE(folder.WriteInfo(SomeInfo({folder.path() + "/my.state", "/nvme/1.state"})).ok());
  fs::rename(Path("run"), Path("elsewhere"));
  const Result<RunInfo> read = ReadRunInfo(Path("elsewhere"));
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_THAT(read->state.all(), ElementsAre(Path("elsewhere/my.state"), "/nvme/1.state"));
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

TEST_F(RunFolderTest, NumbersOfInfoThatNoRunWritesAreDamage) {
  RunFolder folder = Make("run");
  folder.Keep();
  ASSERT_TRUE(folder.WriteInfo(SomeInfo({"/nvme/0.state"})).ok());
  const std::string whole = base_.Read("run/run.json");
  for (const std::string key : {"seed", "sequence_length", "version"}) {
    for (const char* number :
         {"-1", "1.5", "1e30", "18446744073709551616", "4294967297.5", "true"}) {
      std::string text = whole;
      const size_t begin = text.find(": ", text.find("\"" + key + "\"")) + 2;
      text.replace(begin, text.find_first_of(",\n", begin) - begin, number);
      base_.Write("run/run.json", text);
      const Result<RunInfo> read = ReadRunInfo(Path("run"));
      ASSERT_FALSE(read.ok()) << key << " " << number;
      EXPECT_EQ(read.error().code, ErrorCode::kCorruption) << read.error().message;
      EXPECT_THAT(read.error().message, HasSubstr(key));
    }
  }
}

}  // namespace
}  // namespace penstock::train
