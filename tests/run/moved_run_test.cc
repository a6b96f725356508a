// Copies of runs and what is theirs, and what names the run of a state.
#include "run/moved_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "run/run_folder.h"
#include "run/state_owner.h"
#include "tests/temp_folder.h"

namespace penstock::train {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;

class MovedRunTest : public ::testing::Test {
 protected:
  MovedRunTest() {
    for (const char* name : {"run", "here", "nvme"}) fs::create_directory(base_.Path(name));
  }

  /// Of a run that was at "run".
  RunInfo Info(const std::string& run_uuid, const std::string& state = "penstock-a.state") const {
    return {.program = "0.1.0",
            .run_uuid = run_uuid,
            .place = base_.Path("run"),
            .state = StateFiles::OfOneRank({base_.Path("nvme/" + state)}, "a")};
  }
  Folder Here() const { return base_.Open("here"); }
  void WriteOriginal(const RunInfo& info) const {
    ASSERT_TRUE(WriteRunInfo(base_.Open("run"), info).ok());
  }

  const TempFolder base_;
};

TEST_F(MovedRunTest, ARunAtItsPlaceOrWhoseOriginalIsGoneIsNoCopy) {
  const RunInfo info = Info("1");
  EXPECT_FALSE(IsCopy(base_.Open("run"), info));
  EXPECT_FALSE(IsCopy(Here(), info));  // nothing is in it any more
  fs::remove(base_.Path("run"));
  EXPECT_FALSE(IsCopy(Here(), info));
  RunInfo older = info;
  older.place.clear();
  EXPECT_FALSE(IsCopy(Here(), older));
}

TEST_F(MovedRunTest, ARunWhoseUuidOrStateIsAtItsPlaceIsACopy) {
  WriteOriginal(Info("1"));
  EXPECT_TRUE(IsCopy(Here(), Info("1", "penstock-b.state")));
  EXPECT_TRUE(IsCopy(Here(), Info("2")));
  EXPECT_FALSE(IsCopy(Here(), Info("2", "penstock-b.state")));
}

TEST_F(MovedRunTest, WhereTheOriginalCannotBeReadItCountsAsThere) {
  base_.Write("run/run.json", "{\"version\": 4}");
  EXPECT_TRUE(IsCopy(Here(), Info("1")));
}

TEST_F(MovedRunTest, ACopyGetsItsUuidOnceAndKeepsOnlyLeftoversThatLieInIt) {
  WriteOriginal(Info("1"));
  RunInfo copy = Info("1");
  copy.leftovers = {StateFiles::OfOneRank({base_.Path("nvme/x")}, "x"),
                    StateFiles::OfOneRank({base_.Path("here/y"), base_.Path("nvme/y")}, "y")};
  BecomeOwn(Here(), "2", &copy);
  EXPECT_EQ(copy.run_uuid, "2");
  ASSERT_EQ(copy.leftovers.size(), 1U);
  EXPECT_THAT(copy.leftovers[0].all(), ElementsAre(base_.Path("here/y")));
  // What it announces from now on is its own.
  copy.leftovers = {StateFiles::OfOneRank({base_.Path("nvme/z")}, "z")};
  BecomeOwn(Here(), "3", &copy);
  EXPECT_EQ(copy.run_uuid, "2");
  EXPECT_EQ(copy.leftovers.size(), 1U);
}

/// A run that was at "run", of which "here" has a copy, and that was moved to "moved".
class MovedOriginalTest : public MovedRunTest {
 protected:
  MovedOriginalTest() {
    fs::create_directory(base_.Path("moved"));
    fs::remove(base_.Path("run"));
    EXPECT_TRUE(WriteRunInfo(base_.Open("moved"), info_).ok());
    EXPECT_TRUE(WriteRunInfo(Here(), info_).ok());
    Name("run");
  }
  void Name(const std::string& owner) const {
    base_.Write("nvme/penstock-a.run", "\"" + base_.Path(owner) + "\"");
  }
  void ResumeAt(const std::string& place) {
    info_.place = base_.Path(place);
    ASSERT_TRUE(WriteRunInfo(base_.Open(place), info_).ok());
    Name(place);
  }

  RunInfo info_ = Info("1");
};

TEST_F(MovedOriginalTest, WhichOfTwoIsTheCopyIsUnknownUntilOneIsResumed) {
  EXPECT_FALSE(IsCopy(Here(), info_));
  EXPECT_EQ(LastPlaceElsewhere(Here(), info_), base_.Path("run"));
  EXPECT_EQ(LastPlaceElsewhere(base_.Open("moved"), info_), base_.Path("run"));
}

TEST_F(MovedOriginalTest, TheStateNamesTheOneThatWasResumedAndTheOtherIsACopy) {
  const RunInfo copy = info_;
  ResumeAt("moved");
  EXPECT_EQ(OriginalOf(Here(), copy), base_.Path("moved"));
  EXPECT_FALSE(IsCopy(base_.Open("moved"), info_));
  EXPECT_EQ(LastPlaceElsewhere(base_.Open("moved"), info_), std::nullopt);
}

TEST_F(MovedOriginalTest, ACopyThatIsPutWhereTheRunWasIsACopyStill) {
  const RunInfo copy = info_;
  ResumeAt("moved");
  fs::rename(base_.Path("here"), base_.Path("run"));
  EXPECT_EQ(OriginalOf(base_.Open("run"), copy), base_.Path("moved"));
  fs::rename(base_.Path("moved"), base_.Path("again"));
  EXPECT_FALSE(IsCopy(base_.Open("run"), copy));
  EXPECT_EQ(LastPlaceElsewhere(base_.Open("run"), copy), base_.Path("moved"));
}

TEST_F(MovedOriginalTest, ALeftoverNamesTheOriginalTooAndACopyGetsItsUuidOnce) {
  RunInfo copy = info_;
  copy.leftovers = {*copy.state};
  copy.state.reset();
  ResumeAt("moved");
  EXPECT_EQ(OriginalOf(Here(), copy), base_.Path("moved"));
  copy = Info("1");
  BecomeOwn(Here(), "2", &copy);
  BecomeOwn(Here(), "3", &copy);
  EXPECT_EQ(copy.run_uuid, "2");
}

TEST_F(MovedOriginalTest, ACopyOfItAtAnOldPlaceTakesNothingFromTheRun) {
  ResumeAt("here");
  fs::remove_all(base_.Path("moved"));
  fs::copy(base_.Path("here"), base_.Path("moved"));
  Name("moved");  // as a leftover's file may still say
  EXPECT_FALSE(IsCopy(Here(), info_));
}

TEST_F(MovedOriginalTest, ASnapshotIsWhereItsRunIs) {
  RunInfo kept = info_;
  kept.place = base_.Path("run/snapshots/kept");
  kept.state = StateFiles::OfOneRank({base_.Path("nvme/penstock-a.snapshot-kept.state")}, "a");
  for (const char* run : {"moved", "here"}) {
    fs::create_directories(base_.Path(std::string(run) + "/snapshots/kept"));
    ASSERT_TRUE(WriteRunInfo(base_.Open(std::string(run) + "/snapshots/kept"), kept).ok());
  }
  const auto elsewhere = [&](const std::string& run) {
    return LastPlaceElsewhere(base_.Open(run + "/snapshots/kept"), kept);
  };
  EXPECT_EQ(elsewhere("moved"), base_.Path("run"));
  ResumeAt("moved");
  EXPECT_EQ(elsewhere("moved"), std::nullopt);
  EXPECT_EQ(elsewhere("here"), base_.Path("moved"));
}

class StateOwnerTest : public MovedRunTest {
 protected:
  void Note(const StateFiles& state) const {
    NoteOwner(state, base_.Open("run"), [](const std::string& why) { ADD_FAILURE() << why; });
  }
  Status Check() const { return CheckNoOrphan(base_.Path("run"), {base_.Path("nvme")}); }

  const std::string path_ = base_.Path("nvme/penstock-a.state");
  const StateFiles state_ = StateFiles::OfOneRank({path_}, "a");
};

TEST_F(StateOwnerTest, AStateThatNamesTheRunIsAnOrphanWhereNoRunIs) {
  EXPECT_TRUE(Check().ok());
  Note(state_);
  EXPECT_TRUE(Check().ok()) << "there is no state";
  base_.Write("nvme/penstock-a.state", "x");
  EXPECT_TRUE(FailsWith(Check(), ErrorCode::kNotFound, {path_, base_.Path("run")}));
  EXPECT_TRUE(CheckNoOrphan(base_.Path("here"), {base_.Path("nvme")}).ok());
  base_.Write("nvme/penstock-a.run", "\"/other\"");
  EXPECT_TRUE(Check().ok());
  base_.Write("nvme/penstock-a.run", "[1, ");
  EXPECT_TRUE(Check().ok());
}

TEST_F(StateOwnerTest, AStateInItsRunHasNone) {
  Note(StateFiles::OfOneRank({base_.Path("run/penstock-a.state")}, "a"));
  EXPECT_TRUE(base_.List("run").empty());
}

TEST_F(StateOwnerTest, OnlyFilesThatNameTheRunAndCutOffOnesAreFound) {
  EXPECT_FALSE(FindOwner(state_, {base_.Path("run")}).value().has_value());
  Note(state_);
  base_.Write("nvme/penstock-a.run.tmp-17", "");
  base_.Write("nvme/penstock-b.run", "\"" + base_.Path("run") + "\"");
  const auto found = FindOwner(state_, {"", base_.Path("run")}).value();
  ASSERT_TRUE(found.has_value());
  std::vector<std::string> names;
  for (const FoundFile& file : found->files) names.push_back(file.name);
  EXPECT_THAT(names, ElementsAre("penstock-a.run", "penstock-a.run.tmp-17"));
  base_.Write("nvme/penstock-a.run", "no path");
  fs::remove(base_.Path("nvme/penstock-a.run.tmp-17"));
  EXPECT_FALSE(FindOwner(state_, {"", base_.Path("run")}).value().has_value());
}

}  // namespace
}  // namespace penstock::train
