#include "train/loop/commit_schedule.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <limits>
#include <vector>

namespace penstock::train {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;

class CommitScheduleTest : public ::testing::Test {
 protected:
  CommitScheduleTest() { config_.commit_every_seconds = 0; }

  static StepRow Row(uint64_t step, bool sound = true) {
    StepRow row;
    row.step = step;
    row.skipped = !sound;
    return row;
  }
  /// Makes every commit that is due, in steps of which some are not sound; returns after which
  /// steps. The commits that are to be kept are, `kept_after` steps later.
  std::vector<uint64_t> Commits(uint64_t steps, const std::vector<uint64_t>& not_sound = {},
                                uint64_t kept_after = 1) {
    CommitSchedule schedule(config_, true);
    std::vector<uint64_t> commits;
    for (uint64_t step = 1; step <= steps; ++step) {
      const bool confirmed = !commits.empty() && step >= commits.back() + kept_after;
      if (schedule.TakeKeep(confirmed, false)) kept_.push_back(commits.back());
      schedule.StepDone(Row(step, !std::ranges::count(not_sound, step)));
      if (!schedule.MayCommit(false) || !schedule.Due()) continue;
      schedule.Begun();
      commits.push_back(step);
    }
    return commits;
  }

  config::Config config_;
  std::vector<uint64_t> kept_;
};

TEST_F(CommitScheduleTest, WithoutIntervalsNoneIsDue) { EXPECT_THAT(Commits(9), ElementsAre()); }

TEST_F(CommitScheduleTest, OneIsDueEverySoManySteps) {
  config_.commit_every_steps = 3;
  EXPECT_THAT(Commits(9), ElementsAre(3, 6, 9));
}

TEST_F(CommitScheduleTest, OneThatIsDueWaitsForAStepThatIsSound) {
  config_.commit_every_steps = 3;
  EXPECT_THAT(Commits(9, {3, 4}), ElementsAre(5, 6, 9));
}

TEST_F(CommitScheduleTest, StepsThatArePassedOverCount) {
  config_.commit_every_steps = 3;
  CommitSchedule schedule(config_, true);
  StepRow row = Row(4);
  row.previous_row = 2;
  schedule.StepDone(row);
  EXPECT_TRUE(schedule.Due()) << "step 3 lies between";
}

TEST_F(CommitScheduleTest, ALossThatIsNotFiniteIsNotSound) {
  CommitSchedule schedule(config_, true);
  StepRow row = Row(1);
  row.loss = std::numeric_limits<double>::quiet_NaN();
  schedule.StepDone(row);
  EXPECT_FALSE(schedule.MayCommit(false));
  schedule.StepDone(Row(2));
  EXPECT_TRUE(schedule.MayCommit(false));
}

TEST_F(CommitScheduleTest, ARunThatResumesInSkippedStepsIsNotSound) {
  EXPECT_FALSE(CommitSchedule(config_, false).MayCommit(false));
}

TEST_F(CommitScheduleTest, NoneIsMadeWhileTheNewestIsCopied) {
  const CommitSchedule schedule(config_, true);
  EXPECT_FALSE(schedule.MayCommit(true));
}

TEST_F(CommitScheduleTest, ASnapshotThatIsDueMakesACommitAndKeepsItOnceItIsConfirmed) {
  config_.snapshot_every_steps = 4;
  EXPECT_THAT(Commits(9), ElementsAre(4, 8));
  EXPECT_THAT(kept_, ElementsAre(4, 8));
}

TEST_F(CommitScheduleTest, NoCommitReplacesOneThatIsToBeKept) {
  config_.commit_every_steps = 1;
  config_.snapshot_every_steps = 4;
  EXPECT_THAT(Commits(9, {}, 3), ElementsAre(1, 2, 3, 4, 7, 8));
  EXPECT_THAT(kept_, ElementsAre(4));
}

TEST_F(CommitScheduleTest, OneThatIsToBeKeptIsNotWhileAnotherIsCopiedOrBeforeALossConfirmsIt) {
  config_.snapshot_every_steps = 1;
  CommitSchedule schedule(config_, true);
  schedule.StepDone(Row(1));
  EXPECT_FALSE(schedule.TakeKeep(true, false)) << "there is none yet";
  schedule.Begun();
  EXPECT_FALSE(schedule.TakeKeep(false, false));
  EXPECT_FALSE(schedule.TakeKeep(true, true));
  EXPECT_TRUE(schedule.TakeKeep(true, false));
  EXPECT_FALSE(schedule.TakeKeep(true, false)) << "it is done";
}

TEST_F(CommitScheduleTest, TheClockCountsFromTheLastCommitThatWasMade) {
  config_.commit_every_seconds = 10;
  CommitSchedule schedule(config_, true);
  const CommitSchedule::Time begin;
  schedule.Begin(begin);
  EXPECT_FALSE(schedule.TimeIsUp(begin + seconds(9)));
  EXPECT_TRUE(schedule.TimeIsUp(begin + seconds(10)));
  schedule.Begun();
  EXPECT_TRUE(schedule.TimeIsUp(begin + seconds(11))) << "it may fail";
  schedule.Made(begin + seconds(12));
  EXPECT_FALSE(schedule.TimeIsUp(begin + seconds(21)));
  EXPECT_TRUE(schedule.TimeIsUp(begin + seconds(22)));
}

}  // namespace
}  // namespace penstock::train
