// Commits in doubt of a run of the C interface, and what a killed process leaves of that
// (docs/pytorch_runs.md, "Losses").
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <string>

#include "tests/front/c_rows.h"
#include "tests/front/c_run.h"

namespace penstock::front {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class CDoubtTest : public ::testing::Test {
 protected:
  CDoubtTest() { fs::create_directory(drive_); }

  RowTraining Train(const json& more = json::object()) const {
    const json options{{"run", run_}, {"nvme_path", {drive_}}};
    return {options, kHomes[3], drive_, more};
  }
  /// Commits steps 1 and 2, of which the first is confirmed.
  static void CommitTwo(RowTraining& training) {
    training.Step(1);
    training.Commit();
    training.Step(1);
    training.Commit();
  }
  /// The training of a process that is killed behind `then`.
  void Killed(const std::function<void(RowTraining&)>& then) const {
    InKilledProcess([&] {
      auto* const training =
          new RowTraining({{"run", run_}, {"nvme_path", {drive_}}}, kHomes[3], drive_);
      then(*training);
    });
  }
  std::optional<uint64_t> Noted() const {
    if (!fs::exists(note_)) return std::nullopt;
    return json::parse(TextOf(note_))["step"];
  }
  static uint64_t StepOf(RowTraining& training) {
    return training.training.engine().Describe()["step"];
  }
  static json Warnings(RowTraining& training) {
    return training.training.engine().Describe()["warnings"];
  }
  std::vector<uint64_t> Rows() const {
    std::vector<uint64_t> steps;
    for (const json& row : LinesOf(run_ + "/metrics.jsonl")) steps.push_back(row["step"]);
    return steps;
  }

  const TempFolder temp_;
  const std::string root_ = fs::canonical(temp_.Path());
  const std::string run_ = root_ + "/run";
  const std::string drive_ = root_ + "/drive";
  const std::string note_ = run_ + "/doubt.json";
};

TEST_F(CDoubtTest, AProcessThatIsKilledInDoubtIsFollowedByOneThatResumesFromTheCommitBefore) {
  Killed([](RowTraining& training) {
    CommitTwo(training);
    training.Step(kNotFinite);
  });
  EXPECT_EQ(Noted(), 2U);
  RowTraining training = Train();
  EXPECT_EQ(StepOf(training), 1U);
  EXPECT_THAT(Warnings(training),
              ElementsAre(AllOf(HasSubstr("the commit of step 2 gave no finite loss"),
                                HasSubstr("the commit of step 1 is whole and is used"))));
  EXPECT_EQ(Noted(), std::nullopt);
  EXPECT_THAT(Rows(), ElementsAre(1));
}

TEST_F(CDoubtTest, WithoutANoteTheCommitInDoubtIsTheOneThatIsResumed) {
  Killed([](RowTraining& training) {
    CommitTwo(training);
    training.Step(kNotFinite);
  });
  fs::remove(note_);
  RowTraining training = Train();
  EXPECT_EQ(StepOf(training), 2U);
  EXPECT_THAT(Warnings(training), IsEmpty());
}

TEST_F(CDoubtTest, ANoteDoesNotSpeakAgainstALaterCommitOfTheSameStep) {
  Killed([](RowTraining& training) {
    CommitTwo(training);
    training.Step(kNotFinite);
  });
  Killed([](RowTraining& training) {
    training.Step(1);
    training.Commit();
  });
  RowTraining training = Train();
  EXPECT_EQ(StepOf(training), 2U);
  EXPECT_THAT(Warnings(training), IsEmpty());
}

TEST_F(CDoubtTest, AFiniteLossRemovesTheNote) {
  RowTraining training = Train();
  CommitTwo(training);
  EXPECT_EQ(Noted(), std::nullopt);
  training.Step(kNotFinite);
  EXPECT_EQ(Noted(), 2U);
  training.Step(1);
  EXPECT_EQ(Noted(), std::nullopt);
}

TEST_F(CDoubtTest, TheLossOfAStepThatIsDroppedCounts) {
  RowTraining training = Train();
  CommitTwo(training);
  for (const double loss : {kNotFinite, 1.0}) {
    training.training.ForwardAndBackward(0);
    ASSERT_EQ(penstock_report_loss(training.engine(), loss), PENSTOCK_OK) << penstock_error();
    ASSERT_EQ(penstock_drop_step(training.engine()), PENSTOCK_OK) << penstock_error();
    EXPECT_EQ(Noted(), loss == 1 ? std::nullopt : std::optional<uint64_t>(2));
  }
}

TEST_F(CDoubtTest, TheLossOfAStepThatIsDroppedWhileItsCommitIsMadeCounts) {
  RowTraining training = Train();
  training.Step(1);
  training.Commit();
  training.Step(1);
  ASSERT_EQ(penstock_begin_commit(training.engine(), "{}"), PENSTOCK_OK) << penstock_error();
  training.training.ForwardAndBackward(0);
  ASSERT_EQ(penstock_report_loss(training.engine(), kNotFinite), PENSTOCK_OK) << penstock_error();
  ASSERT_EQ(penstock_drop_step(training.engine()), PENSTOCK_OK) << penstock_error();
  ASSERT_EQ(penstock_finish_commit(training.engine()), PENSTOCK_OK) << penstock_error();
  EXPECT_EQ(Noted(), 2U);
}

TEST_F(CDoubtTest, ACommitThatIsTakenBackIsInDoubtNoMore) {
  {
    RowTraining training = Train();
    CommitTwo(training);
    training.Step(kNotFinite);
    int taken = 0;
    uint64_t step = 0;
    ASSERT_EQ(penstock_take_back_commit(training.engine(), &taken, &step), PENSTOCK_OK)
        << penstock_error();
    EXPECT_EQ(taken, 1);
    EXPECT_EQ(step, 2U);
    EXPECT_EQ(Noted(), std::nullopt);
  }
  RowTraining training = Train();
  EXPECT_EQ(StepOf(training), 1U);
  EXPECT_THAT(Warnings(training), IsEmpty());
}

TEST_F(CDoubtTest, TheCommitFromWhichARunResumesMayBeInDoubtAsWell) {
  Killed([](RowTraining& training) { CommitTwo(training); });
  Killed([this](RowTraining& training) {
    EXPECT_EQ(StepOf(training), 2U);
    training.Step(kNotFinite);
    EXPECT_EQ(Noted(), 2U);
  });
  RowTraining training = Train();
  EXPECT_EQ(StepOf(training), 1U);
}

TEST_F(CDoubtTest, TheOnlyCommitIsResumedAllTheSame) {
  Killed([](RowTraining& training) {
    training.Step(1);
    training.Commit();
    training.Step(kNotFinite);
  });
  EXPECT_EQ(Noted(), 1U);
  RowTraining training = Train();
  EXPECT_EQ(StepOf(training), 1U);
}

TEST_F(CDoubtTest, ACallerThatNamesACommitGetsThatOne) {
  for (const uint64_t step : {1, 2}) {
    Killed([](RowTraining& training) {
      CommitTwo(training);
      training.Step(kNotFinite);
    });
    {
      RowTraining training = Train({{"step", step}});
      ASSERT_NE(training.engine(), nullptr) << training.training.engine().error;
      EXPECT_EQ(StepOf(training), step);
    }
    for (const std::string& used : {run_, drive_}) fs::remove_all(used);
    fs::create_directory(drive_);
  }
}

TEST_F(CDoubtTest, AFileOfTheUsersWithThatNameStays) {
  fs::create_directory(run_);
  std::ofstream(note_) << "{\"mine\": 2}";
  for (int resumed = 0; resumed < 2; ++resumed) {
    RowTraining training = Train();
    training.Step(1);
    training.Commit();
  }
  EXPECT_EQ(TextOf(note_), "{\"mine\": 2}");
}

}  // namespace
}  // namespace penstock::front
