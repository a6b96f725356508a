#include "train/loop/loop_commits.h"

#include <gmock/gmock.h>

#include <optional>
#include <string>
#include <vector>

#include "tests/train/loop/trainer_loop_support.h"

namespace penstock::train {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// Writes down what it is told, and how many commits there were then.
class Listener final : public StepObserver {
 public:
  explicit Listener(const ScriptedEngine& engine) : engine_(engine) {}
  std::vector<std::string> told;
  Status synced;
  Status seen;

  void Doing(std::string_view what, uint64_t step) override {
    Told(std::string(what) + " " + std::to_string(step));
  }
  void ReleaseCommit() override { Told("release"); }
  Status SyncRows() override {
    Told("sync");
    return synced;
  }
  Status AfterCommit() override {
    Told("after");
    return seen;
  }
  void CommitRefused(uint64_t step, const std::string&) override {
    Told("refused " + std::to_string(step));
  }
  void KeepCommit() override { Told("keep"); }

 private:
  void Told(const std::string& what) {
    told.push_back(what + ", " + std::to_string(engine_.commits.size()) + " made");
  }
  const ScriptedEngine& engine_;
};

class LoopCommitsTest : public ::testing::Test {
 protected:
  LoopCommitsTest() {
    config_.commit_every_seconds = 0;
    engine_.made_with = {.config = config_};
    session_.emplace(engine_);
    EXPECT_TRUE(session_->Initialize({}).ok());
    notes_.emplace(RankNotes::Parts{.session = *session_,
                                    .device = device_,
                                    .meter = meter_,
                                    .stop_requested = [] { return false; }},
                   comm::World(), Bytes());
    commits_.emplace(*session_, *notes_, listener_, config_);
  }

  config::Config config_;
  ScriptedEngine engine_;
  FakeDevice device_;
  ActivityMeter meter_;
  std::optional<zero::Session> session_;
  std::optional<RankNotes> notes_;
  Listener listener_{engine_};
  std::optional<LoopCommits> commits_;
};

TEST_F(LoopCommitsTest, RowsAreDurableBeforeTheCommitThatReliesOnThemAndItCountsAfterwards) {
  ASSERT_TRUE(commits_->Begin("{}").ok());
  EXPECT_THAT(listener_.told, ElementsAre("release, 0 made", "sync, 0 made"));
  ASSERT_TRUE(commits_->Finish().ok());
  EXPECT_THAT(listener_.told, ElementsAre("release, 0 made", "sync, 0 made",
                                          "waits for the commit of 0, 0 made", "after, 1 made"));
  ASSERT_TRUE(commits_->Finish().ok());
  EXPECT_EQ(listener_.told.size(), 4U) << "there is none to finish";
}

TEST_F(LoopCommitsTest, ACommitWithoutDurableRowsIsMadeAndSeenAndEndsTheRun) {
  listener_.synced = MakeError(ErrorCode::kIo, "a bad block under the rows");
  ASSERT_TRUE(commits_->Begin("{}").ok());
  EXPECT_TRUE(FailsWith(commits_->Finish(), ErrorCode::kIo, {"a bad block under the rows"}));
  EXPECT_EQ(engine_.commits.size(), 1U);
  EXPECT_EQ(listener_.told.back(), "after, 1 made");
}

TEST_F(LoopCommitsTest, ACommitThatAnObserverDoesNotAcceptEndsTheRun) {
  listener_.seen = MakeError(ErrorCode::kNotFound, "RUN was removed");
  ASSERT_TRUE(commits_->Begin("{}").ok());
  EXPECT_TRUE(FailsWith(commits_->Finish(), ErrorCode::kNotFound, {"RUN was removed"}));
}

TEST_F(LoopCommitsTest, WeightsThatAreRefusedAreReportedAndNoCommitIsSeen) {
  engine_.refuse_commits_from = 0;
  ASSERT_TRUE(commits_->Begin("{}").ok());
  EXPECT_FALSE(commits_->Finish().ok());
  EXPECT_EQ(listener_.told.back(), "refused 0, 0 made");
}

TEST_F(LoopCommitsTest, ACommitThatFailsForTheDriveIsNotSaidToBeRefused) {
  engine_.fail_commit = true;
  ASSERT_TRUE(commits_->Begin("{}").ok());
  EXPECT_TRUE(FailsWith(commits_->Finish(), ErrorCode::kOutOfSpace, {"no space"}));
  EXPECT_EQ(listener_.told.back(), "waits for the commit of 0, 0 made");
}

TEST_F(LoopCommitsTest, OneThatWasBegunIsWaitedForAtTheEnd) {
  ASSERT_TRUE(commits_->Begin("{}").ok());
  EXPECT_THAT(engine_.commits, IsEmpty());
  commits_.reset();
  EXPECT_EQ(engine_.commits.size(), 1U);
}

}  // namespace
}  // namespace penstock::train
