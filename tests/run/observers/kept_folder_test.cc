#include "run/observers/kept_folder.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <optional>

#include "tests/run/observers/support.h"
#include "tests/temp_folder.h"

namespace penstock::train {
namespace {

class KeptFolderTest : public ::testing::Test {
 protected:
  KeptFolderTest() {
    run_.emplace(RunFolder::Create(base_.Path("run")).value());
    RunInfo before = info_;
    before.leftovers = {*before.state};
    before.state.reset();
    EXPECT_TRUE(run_->WriteInfo(before).ok());
    EXPECT_TRUE(run_->CreateRows().ok());
    EXPECT_TRUE(run_->Watch().ok());
  }
  /// The run is over.
  bool IsThereAfterwards() {
    run_.reset();
    return base_.Has("run");
  }

  const TempFolder base_;
  const RunInfo info_ = {.program = "0.1.0",
                         .run_uuid = "0123",
                         .place = base_.Path("run"),
                         .state = StateFiles::OfOneRank({base_.Path("state")}, "0123"),
                         .training = {.model_json = "{}"}};
  std::optional<RunFolder> run_;
  int kept_ = 0;
  KeptFolder folder_{&*run_, info_, [this] { ++kept_; }, [](const std::string&) {}};
};

TEST_F(KeptFolderTest, ARunWithoutResultsLeavesNothing) {
  folder_.AtEnd({.failure = Error{ErrorCode::kIo, "a bad block"}});
  EXPECT_EQ(kept_, 0);
  EXPECT_FALSE(IsThereAfterwards());
}

TEST_F(KeptFolderTest, AStepIsAResult) {
  DoneStep step = Doubting({});
  EXPECT_TRUE(folder_.AfterStep(step).ok());
  EXPECT_EQ(kept_, 1);
  EXPECT_TRUE(IsThereAfterwards());
}

TEST_F(KeptFolderTest, ACommitIsAResult) {
  EXPECT_TRUE(folder_.AfterCommit().ok());
  EXPECT_EQ(kept_, 1);
  EXPECT_TRUE(IsThereAfterwards());
}

TEST_F(KeptFolderTest, RunJsonNamesTheStateOnceItHasACommit) {
  EXPECT_FALSE(ReadRunInfo(run_->folder())->state.has_value());
  EXPECT_TRUE(folder_.AfterCommit().ok());
  const RunInfo named = ReadRunInfo(run_->folder()).value();
  ASSERT_TRUE(named.state.has_value());
  EXPECT_EQ(named.state->uuid, "0123");
  EXPECT_TRUE(named.leftovers.empty());
}

TEST_F(KeptFolderTest, TheFirstCommitIsAResultThoughNoStepFollowed) {
  folder_.AtEnd({.begun = true, .failure = Error{ErrorCode::kIo, "a bad block"}});
  EXPECT_EQ(kept_, 1);
  EXPECT_TRUE(IsThereAfterwards());
}

TEST_F(KeptFolderTest, ACommitInARunThatIsGoneDoesNotCount) {
  std::filesystem::remove_all(base_.Path("run"));
  EXPECT_TRUE(FailsWith(folder_.AfterCommit(), ErrorCode::kNotFound, {base_.Path("run")}));
  EXPECT_EQ(kept_, 0);
}

TEST_F(KeptFolderTest, ACommitWithoutItsRowsDoesNotCount) {
  std::filesystem::remove(base_.Path("run/metrics.jsonl"));
  EXPECT_TRUE(FailsWith(folder_.AfterCommit(), ErrorCode::kNotFound, {"metrics.jsonl"}));
  EXPECT_EQ(kept_, 0);
}

TEST_F(KeptFolderTest, OfARankWithoutTheFolderEachCommitCounts) {
  int kept = 0;
  KeptFolder other(
      nullptr, std::nullopt, [&kept] { ++kept; }, [](const std::string&) {});
  EXPECT_TRUE(other.AfterCommit().ok());
  EXPECT_EQ(kept, 1);
}

}  // namespace
}  // namespace penstock::train
