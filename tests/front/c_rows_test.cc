// Rows, findings and curves of a run of the C interface (docs/pytorch_runs.md, "Rows").
#include <gmock/gmock.h>
#include <sys/resource.h>

#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "tests/front/c_rows.h"
#include "tests/front/c_run.h"

namespace penstock::front {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class CRowsTest : public ::testing::Test {
 protected:
  CRowsTest() { fs::create_directory(drive_); }

  json InRun() const { return {{"run", run_}, {"nvme_path", {drive_}}}; }
  RowTraining Train(const json& more = json::object(), const json& changes = json::object()) const {
    return {InRun(), kHomes[3], drive_, more, changes};
  }
  std::vector<json> Rows() const { return LinesOf(run_ + "/metrics.jsonl"); }
  std::vector<json> Reports() const { return LinesOf(run_ + "/numerics.jsonl"); }
  std::vector<uint64_t> Steps(const std::string& run = "") const {
    std::vector<uint64_t> steps;
    for (const json& row : LinesOf((run.empty() ? run_ : run) + "/metrics.jsonl")) {
      steps.push_back(row["step"]);
    }
    return steps;
  }
  static std::vector<double> LossesIn(const std::string& run) {
    std::vector<double> losses;
    for (const json& row : LinesOf(run + "/metrics.jsonl")) losses.push_back(row["loss"]);
    return losses;
  }
  json Curves() const {
    return {{"csv_monitor", {{"enabled", true}, {"output_path", root_}, {"job_name", "job"}}}};
  }
  std::string Curve(const std::string& name) const {
    return TextOf(root_ + "/job/Train_Samples_" + name + ".csv");
  }

  const TempFolder temp_;
  const std::string root_ = fs::canonical(temp_.Path());
  const std::string run_ = root_ + "/run";
  const std::string drive_ = root_ + "/drive";
};

TEST_F(CRowsTest, AStepThatReportsItsLossHasARowWhenItEnds) {
  for (const Home& home : kHomes) {
    if (home.name == "device") continue;
    RowTraining training(home.optimizer == "nvme" ? InRun() : json{{"run", run_}}, home, drive_);
    for (const uint64_t step : {1, 2, 3}) {
      const double loss = 3.25 / static_cast<double>(step);
      const double lr = 1e-2 * static_cast<double>(step);
      const penstock_outcome outcome = training.Step(loss, lr);
      ASSERT_THAT(Rows(), SizeIs(step)) << home.name;
      const json row = Rows().back();
      EXPECT_EQ(row["step"], step);
      EXPECT_EQ(row["loss"], loss);
      EXPECT_EQ(row["grad_norm"], outcome.grad_norm);
      EXPECT_EQ(row["lr"], lr);
      EXPECT_EQ(row["loss_scale"], 1);
      EXPECT_EQ(row["skipped"], false);
      EXPECT_EQ(row["samples"], step);
      EXPECT_GT(row["step_s"], 0);
      EXPECT_GT(row["host_peak_bytes"], 0);
      for (const char* unknown : {"tokens", "compute_s", "tflops", "device_peak_bytes"}) {
        EXPECT_FALSE(row.contains(unknown)) << unknown;
      }
    }
    EXPECT_THAT(training.Notices(), IsEmpty());
    EXPECT_THAT(Reports(), IsEmpty());
  }
}

TEST_F(CRowsTest, StepsThatReportNoLossLeaveNothing) {
  {
    RowTraining training = Train();
    EXPECT_EQ(training.Step({}).notices, 0U);
    training.Commit();
    char* folder = nullptr;
    ASSERT_EQ(penstock_snapshot(training.engine(), "kept", &folder), PENSTOCK_OK);
    penstock_free(folder);
    training.Step({});
  }
  { const RowTraining training = Train({{"snapshot", run_ + "/snapshots/kept"}}); }
  EXPECT_EQ(FilesIn(run_), (std::set<std::string>{"run.json", "run.lock", "snapshots"}));
  EXPECT_FALSE(fs::exists(run_ + "/snapshots/kept/metrics.jsonl"));
}

TEST_F(CRowsTest, AResumeCutsTheRowsAndTheFindingsBehindItsCommit) {
  {
    RowTraining training = Train();
    for (const double loss : {1.0, 0.5}) training.Step(loss);
    training.Commit();
    training.Step(0.25);
    training.Step(kNotFinite);
    EXPECT_THAT(Reports(), SizeIs(1));
  }
  EXPECT_THAT(Steps(), ElementsAre(1, 2, 3, 4));
  RowTraining training = Train();
  EXPECT_THAT(Steps(), ElementsAre(1, 2));
  EXPECT_THAT(Reports(), IsEmpty());
  training.Step(0.125);
  EXPECT_THAT(Steps(), ElementsAre(1, 2, 3));
  EXPECT_EQ(Rows()[2]["loss"], 0.125);
}

TEST_F(CRowsTest, ARowThatACrashLostIsThatOfTheCommit) {
  {
    RowTraining training = Train();
    for (const double loss : {1.0, 0.5, 0.25}) training.Step(loss);
    training.Commit();
  }
  const std::vector<json> rows = Rows();
  const std::string text = TextOf(run_ + "/metrics.jsonl");
  std::ofstream(run_ + "/metrics.jsonl") << text.substr(0, text.find("\"step\":3") - 1) << "{\"st";
  {
    RowTraining training = Train();
    EXPECT_EQ(Rows(), rows);
    EXPECT_THAT(training.Notices(), IsEmpty());
  }
  fs::remove(run_ + "/metrics.jsonl");
  RowTraining training = Train();
  EXPECT_EQ(Rows(), std::vector<json>{rows[2]});
  EXPECT_THAT(training.Notices(), ElementsAre(HasSubstr("has no rows of steps 1 to 2")));
}

TEST_F(CRowsTest, ARunWhoseProcessesDoNotAllReportTheirLossesHasAGapThatIsNamed) {
  for (const std::optional<double> loss : {std::optional(1.0), std::optional<double>()}) {
    RowTraining training = Train();
    for (int i = 0; i < 2; ++i) training.Step(loss);
    training.Commit();
  }
  for (int resumed = 0; resumed < 2; ++resumed) {
    RowTraining training = Train();
    EXPECT_THAT(Steps(), ElementsAre(1, 2));
    training.Step(0.5);
    EXPECT_THAT(Steps(), ElementsAre(1, 2, 5));
    EXPECT_EQ(Rows().back()["previous_row"], 2);
    EXPECT_THAT(training.Notices(), IsEmpty());
  }
}

TEST_F(CRowsTest, FindingsNameTheTensorAndAreGivenOnce) {
  RowTraining training = Train();
  training.Step(1);
  // All trained tensors get a gradient, the second of one unit an infinite one.
  training.training.ForwardAndBackward(0);
  ASSERT_EQ(penstock_drop_step(training.engine()), PENSTOCK_OK);
  for (uint32_t unit = 0; unit < kUnits; ++unit) {
    for (const uint32_t tensor : {0U, 1U}) {
      Values gradient =
          FirstWeights(tensor == 1 ? PENSTOCK_FLOAT32 : PENSTOCK_BFLOAT16, unit, tensor);
      if (unit == 2 && tensor == 1) gradient.Set(3, std::numeric_limits<float>::infinity());
      ASSERT_EQ(
          penstock_gradient(training.engine(), unit, tensor, gradient.bytes.data(), gradient.dtype),
          PENSTOCK_OK);
    }
  }
  ASSERT_EQ(penstock_report_loss(training.engine(), 1), PENSTOCK_OK);
  penstock_outcome outcome{};
  ASSERT_EQ(training.End(&outcome, 1e-2), PENSTOCK_OK) << penstock_error();
  EXPECT_EQ(outcome.skipped, 1);
  EXPECT_EQ(outcome.notices, 1U);
  const std::vector<std::string> said = training.Notices();
  ASSERT_THAT(said, SizeIs(1));
  EXPECT_THAT(said[0], HasSubstr("step 2: the gradient of u2.b is the first that is not finite"));
  EXPECT_THAT(training.Notices(), IsEmpty());
  EXPECT_EQ(training.Step(1).notices, 0U);
  ASSERT_THAT(Reports(), SizeIs(1));
  EXPECT_EQ(Reports()[0]["kind"], "nonfinite");
  EXPECT_EQ(Reports()[0]["tensor"], "u2.b");
  EXPECT_EQ(Reports()[0]["layer"], 1);
  EXPECT_EQ(Rows()[1]["skipped"], true);
  EXPECT_EQ(Rows()[1]["grad_norm"], nullptr);
}

TEST_F(CRowsTest, AnUpdateThatIsTooLargeForTheWeightsIsReportedByItsTensor) {
  RowTraining training = Train();
  training.Step(1);
  training.Step(1, 5);
  training.Step(1);
  const std::vector<std::string> said = training.Notices();
  ASSERT_THAT(said, SizeIs(1));
  EXPECT_THAT(said[0], AllOf(HasSubstr("step 2: the update of u"), HasSubstr(".w is "),
                             HasSubstr("of 8 tensors")));
}

TEST_F(CRowsTest, ATrainingThatEndsByItsNumbersLeavesItsLastStepsAndAResumeRemovesThem) {
  const std::string last_steps = run_ + "/overflow.json";
  {
    RowTraining training = Train();
    for (int i = 0; i < 2; ++i) {
      training.Step(1);
      training.Commit();
    }
    training.Step(kNotFinite);
    training.Step(kNotFinite);
    EXPECT_FALSE(fs::exists(last_steps));
    EXPECT_EQ(penstock_use(training.engine(), 0, PENSTOCK_FORWARD, nullptr), PENSTOCK_NUMERIC);
    EXPECT_EQ(penstock_use(training.engine(), 0, PENSTOCK_FORWARD, nullptr), PENSTOCK_NUMERIC);
    ASSERT_TRUE(fs::exists(last_steps));
    const json box = json::parse(TextOf(last_steps));
    EXPECT_EQ(box["step"], 4);
    EXPECT_THAT(box["tensors"], SizeIs(8));  // none of the frozen ones
    EXPECT_THAT(box["steps"], SizeIs(4));
    EXPECT_EQ(box["first_cause"]["kind"], "nonfinite");
  }
  RowTraining training = Train();
  EXPECT_FALSE(fs::exists(last_steps));
}

TEST_F(CRowsTest, ACommitThatItsWeightsRefuseLeavesTheLastStepsHoweverItIsEnded) {
  const std::string last_steps = run_ + "/overflow.json";
  for (const bool taken_back : {true, false}) {
    {
      RowTraining training = Train();
      EXPECT_FALSE(fs::exists(last_steps));
      training.Step(2.5);
      if (training.training.engine().Describe()["step"] == 1) training.Commit();
      training.Step(2.5, 1e30);
      ASSERT_EQ(penstock_begin_commit(training.engine(), "{}"), PENSTOCK_OK) << penstock_error();
      int taken = 0;
      uint64_t step = 0;
      if (taken_back) {
        EXPECT_EQ(penstock_take_back_commit(training.engine(), &taken, &step), PENSTOCK_NUMERIC);
      }
    }
    EXPECT_TRUE(fs::exists(last_steps)) << taken_back;
  }
}

TEST_F(CRowsTest, AFileOfTheUsersStaysAndIsNamed) {
  fs::create_directory(run_);
  const std::string mine = "{\"step\": 1, \"loss\": 7}\n";
  for (const char* name : {"metrics.jsonl", "numerics.jsonl"}) {
    std::ofstream(run_ + "/" + name) << mine;
    for (const bool commits : {false, true, false}) {
      RowTraining training = Train();
      EXPECT_EQ(training.Step(1).notices, 1U);
      training.Step(1);
      EXPECT_THAT(training.Notices(),
                  ElementsAre(AllOf(HasSubstr(run_ + "/" + name), HasSubstr("are not written"))));
      if (commits) training.Commit();
      EXPECT_EQ(TextOf(run_ + "/" + name), mine);
      if (name == std::string("numerics.jsonl")) break;  // of a resumed run it has the run's name
    }
    EXPECT_EQ(TextOf(run_ + "/" + name), mine);
    for (const std::string& used : {run_, drive_}) {
      fs::remove_all(used);
      fs::create_directory(used);
    }
  }
}

TEST_F(CRowsTest, RowsOfAnotherRunStayInTheFolderOfANewOne) {
  {
    RowTraining training = Train();
    for (int i = 0; i < 3; ++i) training.Step(1);
    training.Commit();
  }
  const std::string others = TextOf(run_ + "/metrics.jsonl");
  const json in_other{{"run", root_ + "/other"}, {"nvme_path", {drive_}}};
  const std::string path = root_ + "/other/metrics.jsonl";
  fs::create_directory(root_ + "/other");
  std::ofstream(path) << others;
  { const RowTraining training(in_other, kHomes[3], drive_); }
  EXPECT_EQ(TextOf(path), others);
  InKilledProcess([&] {
    auto* const training = new RowTraining(in_other, kHomes[3], drive_);
    training->Step(1);
  });
  for (const bool commits : {false, true}) {
    RowTraining training(in_other, kHomes[3], drive_);
    training.Step(1);
    EXPECT_THAT(training.Notices(), ElementsAre(HasSubstr(path + " was there before this run")));
    if (commits) training.Commit();
  }
  EXPECT_EQ(TextOf(path), others);
  RowTraining training(in_other, kHomes[3], drive_);
  EXPECT_EQ(TextOf(path + ".aside"), others);
}

TEST_F(CRowsTest, FindingsOfTheUsersStayWhenARunBeginsToReportItsLosses) {
  {
    RowTraining training = Train();
    training.Step({});
    training.Commit();
  }
  for (const std::string name : {"numerics.jsonl", "headroom.jsonl", "overflow.json"}) {
    std::ofstream(run_ + "/" + name) << "mine";
    {
      RowTraining training = Train();
      training.Step(1);
      EXPECT_THAT(training.Notices(), ElementsAre(HasSubstr(name + " was there before")));
      training.Commit();
    }
    EXPECT_EQ(TextOf(run_ + "/" + name), "mine");
    EXPECT_FALSE(fs::exists(run_ + "/metrics.jsonl"));
    fs::remove_all(run_);
    fs::remove_all(drive_);
    fs::create_directory(drive_);
    RowTraining training = Train();
    training.Step({});
    training.Commit();
  }
}

TEST_F(CRowsTest, ADamagedFileOfRowsIsNamedAndStaysAndTheTrainingResumes) {
  const std::string path = run_ + "/metrics.jsonl";
  {
    RowTraining training = Train();
    for (int i = 0; i < 4; ++i) training.Step(1);
    training.Commit();
  }
  std::string text = TextOf(path);
  text[text.find("\"step\":2")] = '~';
  std::ofstream(path) << text;
  {
    RowTraining training = Train();
    EXPECT_THAT(training.Notices(),
                ElementsAre(AllOf(HasSubstr(path + ", line 2"), HasSubstr("are not written"))));
    EXPECT_EQ(training.Step(1).step, 5U);
    EXPECT_EQ(TextOf(path), text);
  }
  fs::remove(path);
  RowTraining training = Train();
  EXPECT_THAT(Steps(), ElementsAre(4));
}

TEST_F(CRowsTest, ARowForWhichThereIsNoRoomIsSaidOnceAndTheNextOneNamesTheOneBeforeIt) {
  RowTraining training({{"run", run_}}, kHomes[1], drive_);  // whose state is written by commits
  training.Step(1);
  void (*const signal_before)(int) = std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit limit{.rlim_cur = fs::file_size(run_ + "/metrics.jsonl") + 10,
                     .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  EXPECT_EQ(training.Step(1).notices, 1U);
  EXPECT_EQ(training.Step(1).notices, 1U);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, signal_before);
  EXPECT_THAT(training.Notices(), ElementsAre(HasSubstr(run_ + "/metrics.jsonl")));
  EXPECT_EQ(training.Step(1).notices, 0U);
  EXPECT_THAT(Steps(), ElementsAre(1, 4));
  EXPECT_EQ(Rows()[1]["previous_row"], 1);
}

TEST_F(CRowsTest, RowsGoWithARunThatHasNoCommit) {
  for (const json& options : {InRun(), json{{"nvme_path", {drive_}}}}) {
    {
      RowTraining training(options, kHomes[3], drive_);
      training.Step(1);
      training.Step(kNotFinite);
      EXPECT_TRUE(fs::exists(training.run.folder() + "/metrics.jsonl"));
      EXPECT_TRUE(fs::exists(training.run.folder() + "/numerics.jsonl"));
    }
    EXPECT_FALSE(fs::exists(run_));
    EXPECT_THAT(FilesIn(drive_), IsEmpty());
  }
  fs::create_directory(run_);  // the user's
  InKilledProcess([&] {
    auto* const training = new RowTraining(InRun(), kHomes[3], drive_);
    training->Step(1);
    training->Step(1);
  });
  EXPECT_THAT(Steps(), ElementsAre(1, 2));
  {
    RowTraining training = Train();
    EXPECT_THAT(Steps(), IsEmpty());
    training.Step(1);
    EXPECT_THAT(Steps(), ElementsAre(1));
  }
  EXPECT_THAT(FilesIn(run_), IsEmpty());
}

TEST_F(CRowsTest, ASnapshotHasItsRowsAndTheyReplaceThoseOfARunThatResumesFromIt) {
  const std::string kept = run_ + "/snapshots/kept";
  {
    RowTraining training = Train();
    training.Step(1);
    training.Commit();
    char* folder = nullptr;
    ASSERT_EQ(penstock_snapshot(training.engine(), "kept", &folder), PENSTOCK_OK)
        << penstock_error();
    penstock_free(folder);
    for (const double loss : {0.5, 0.25}) training.Step(loss);
    training.Commit();
  }
  EXPECT_THAT(Steps(kept), ElementsAre(1));
  EXPECT_THAT(Steps(), ElementsAre(1, 2, 3));
  {
    RowTraining training = Train({{"snapshot", kept}});
    EXPECT_THAT(Steps(), ElementsAre(1));
    training.Step(0.75);
    training.Commit();
  }
  EXPECT_EQ(Rows().back()["loss"], 0.75);
  EXPECT_THAT(Steps(), ElementsAre(1, 2));
  EXPECT_THAT(Steps(kept), ElementsAre(1));
}

TEST_F(CRowsTest, RowsOfStepsThatWereGivenUpAreNotTakenForThoseOfTheSnapshotThoughItsCannotBeRead) {
  const std::string kept = run_ + "/snapshots/kept";
  {
    RowTraining training = Train();
    for (const double loss : {1.0, 0.5}) training.Step(loss);
    training.Commit();
    training.Snapshot("kept");
    for (int i = 0; i < 5; ++i) training.Step(1000);
    training.Commit();
  }
  const std::string rows = TextOf(kept + "/metrics.jsonl");
  std::ofstream(kept + "/metrics.jsonl") << rows.substr(0, 20) << "\n" << rows.substr(20);
  {
    RowTraining training = Train({{"snapshot", kept}});
    EXPECT_THAT(training.Notices(), ElementsAre(HasSubstr("are not written")));
    EXPECT_EQ(RunJson(run_)["rows_from"], "kept");
    for (const double loss : {4.0, 3.0, 2.0}) training.Step(loss);
    training.Commit();
    training.Snapshot("later");
  }
  EXPECT_THAT(LossesIn(run_ + "/snapshots/later"), ElementsAre(2));
  { const RowTraining training = Train(); }
  std::ofstream(kept + "/metrics.jsonl") << rows;
  for (int resumed = 0; resumed < 2; ++resumed) {
    RowTraining training = Train();
    EXPECT_THAT(Steps(), ElementsAre(1, 2, 5));
    EXPECT_THAT(LossesIn(run_), ElementsAre(1, 0.5, 2));
    EXPECT_EQ(Rows().back()["previous_row"], 2);
    EXPECT_FALSE(RunJson(run_).contains("rows_from"));
  }
}

TEST_F(CRowsTest, AKillBeforeTheRowsOfASnapshotWereTakenLeavesThemToTheNextResume) {
  const std::string kept = root_ + "/kept";
  {
    RowTraining training = Train();
    training.Step(1);
    training.Commit();
    training.Snapshot(kept);
    training.Step(1000);
    training.Commit();
  }
  const std::string own = TextOf(run_ + "/metrics.jsonl");
  { const RowTraining training = Train({{"snapshot", kept}}); }
  json info = RunJson(run_);
  info["rows_from"] = kept;
  std::ofstream(run_ + "/run.json") << info;
  std::ofstream(run_ + "/metrics.jsonl") << own;
  {
    RowTraining training = Train();
    EXPECT_THAT(LossesIn(run_), ElementsAre(1));
    EXPECT_THAT(training.Notices(), IsEmpty());
  }
  EXPECT_FALSE(RunJson(run_).contains("rows_from"));
  std::ofstream(run_ + "/run.json") << info;
  std::ofstream(run_ + "/metrics.jsonl") << own;
  fs::remove(kept + "/metrics.jsonl");
  RowTraining training = Train();
  EXPECT_THAT(training.Notices(),
              ElementsAre(AllOf(HasSubstr(kept + " has no rows"), HasSubstr("jsonl.aside"))));
  EXPECT_THAT(LossesIn(run_), ElementsAre(1));
  EXPECT_EQ(TextOf(run_ + "/metrics.jsonl.aside"), own);
}

TEST_F(CRowsTest, AFileWhoseRowOfTheCommittedStepIsAnotherIsPutAside) {
  {
    RowTraining training = Train();
    for (const double loss : {1.0, 0.5}) training.Step(loss);
    training.Commit();
  }
  std::string others = TextOf(run_ + "/metrics.jsonl");
  others.replace(others.find("\"loss\":0.5"), 10, "\"loss\":7.5");
  std::ofstream(run_ + "/metrics.jsonl") << others;
  {
    RowTraining training = Train();
    EXPECT_THAT(LossesIn(run_), ElementsAre(0.5));
    EXPECT_THAT(training.Notices(),
                ElementsAre(AllOf(HasSubstr("another row of step 2"), HasSubstr("jsonl.aside")),
                            HasSubstr("begins anew")));
    training.Commit();  // again, with the row that it has
  }
  EXPECT_EQ(TextOf(run_ + "/metrics.jsonl.aside"), others);
  RowTraining training = Train();
  EXPECT_THAT(LossesIn(run_), ElementsAre(0.5));
  EXPECT_THAT(training.Notices(), IsEmpty());
}

TEST_F(CRowsTest, ACopyThatIsARunOfItsOwnHasTheRowsOfItsSteps) {
  const std::string copy = root_ + "/copies/one";
  RowTraining training = Train();
  for (const double loss : {1.0, 0.5}) training.Step(loss);
  training.Commit();
  char* folder = nullptr;
  ASSERT_EQ(penstock_snapshot(training.engine(), copy.c_str(), &folder), PENSTOCK_OK)
      << penstock_error();
  penstock_free(folder);
  EXPECT_EQ(LinesOf(copy + "/metrics.jsonl"), Rows());
}

TEST_F(CRowsTest, CurvesHaveALineForEachStepAndAreCutWithTheRows) {
  json changes = Curves();
  changes["train_micro_batch_size_per_gpu"] = 4;
  changes["wall_clock_breakdown"] = true;
  {
    RowTraining training = Train(json::object(), changes);
    training.Step(0.5);
    training.Step(kNotFinite);
    EXPECT_EQ(Curve("train_loss"), "step,train_loss\r\n4,0.5\r\n8,nan\r\n");
    EXPECT_EQ(Curve("lr"), "step,lr\r\n4,0.01\r\n8,0.01\r\n");
    training.Commit();
    training.Step(0.25);
  }
  EXPECT_EQ(FilesIn(root_ + "/job").size(), 2U);
  RowTraining training = Train(json::object(), changes);
  EXPECT_EQ(Curve("lr"), "step,lr\r\n4,0.01\r\n8,0.01\r\n");
}

TEST_F(CRowsTest, CurvesTakeALossThatIsNotedAndWithoutOneHaveTheLearningRateAlone) {
  RowTraining training = Train(json::object(), Curves());
  ASSERT_EQ(penstock_note_loss(training.engine(), 0.5), PENSTOCK_OK);
  training.Step({});
  training.Step({}, 0.02);
  EXPECT_EQ(Curve("train_loss"), "step,train_loss\r\n1,0.5\r\n");
  EXPECT_EQ(Curve("lr"), "step,lr\r\n1,0.01\r\n2,0.02\r\n");
  EXPECT_FALSE(fs::exists(run_ + "/metrics.jsonl"));
}

TEST_F(CRowsTest, AResumeWithAnotherBatchKeepsTheLinesOfTheCommittedSteps) {
  for (const std::optional<double> loss : {std::optional(1.0), std::optional<double>()}) {
    json changes = Curves();
    for (const int batch : {8, 2, 4}) {
      changes["train_micro_batch_size_per_gpu"] = batch;
      RowTraining training = Train(json::object(), changes);
      for (int i = 0; i < 2; ++i) training.Step(loss);
      training.Commit();
    }
    EXPECT_EQ(Curve("lr"),
              "step,lr\r\n8,0.01\r\n16,0.01\r\n18,0.01\r\n20,0.01\r\n24,0.01\r\n"
              "28,0.01\r\n");
    if (loss) {
      EXPECT_EQ(Rows().back()["samples"], 28);
    }
    for (const std::string& used : {run_, drive_, root_ + "/job"}) fs::remove_all(used);
    fs::create_directory(drive_);
  }
}

TEST_F(CRowsTest, CurvesBehindASnapshotHaveTheLinesOfItsSteps) {
  const std::string kept = run_ + "/snapshots/kept";
  {
    RowTraining training = Train(json::object(), Curves());
    training.Step(4);
    training.Commit();
    training.Snapshot("first");
    for (const double loss : {3.0, 2.0}) training.Step(loss, 0.02);
    training.Commit();
    training.Snapshot("kept");
  }
  {
    RowTraining training = Train({{"snapshot", run_ + "/snapshots/first"}}, Curves());
    for (int i = 0; i < 4; ++i) training.Step(1000);
    training.Commit();
  }
  RowTraining training = Train({{"snapshot", kept}}, Curves());
  EXPECT_EQ(Curve("train_loss"), "step,train_loss\r\n1,4\r\n2,3\r\n3,2\r\n");
  EXPECT_EQ(Curve("lr"), "step,lr\r\n1,0.01\r\n2,0.02\r\n3,0.02\r\n");
  training.Step(1);
  EXPECT_EQ(Curve("train_loss"), "step,train_loss\r\n1,4\r\n2,3\r\n3,2\r\n4,1\r\n");
}

TEST_F(CRowsTest, AFileOfRowsThatIsRemovedWhileTheRunTrainsIsBegunAnew) {
  RowTraining training = Train();
  for (int i = 0; i < 2; ++i) training.Step(1);
  fs::remove(run_ + "/metrics.jsonl");
  training.Step(0.5);
  training.Commit();
  EXPECT_THAT(training.Notices(),
              ElementsAre(HasSubstr("was removed or replaced"), HasSubstr("steps 1 to 2")));
  training.Step(0.25);
  training.Commit();
  EXPECT_THAT(training.Notices(), IsEmpty());
  EXPECT_THAT(Steps(), ElementsAre(3, 4));
  training.Snapshot("kept");
  EXPECT_THAT(Steps(run_ + "/snapshots/kept"), ElementsAre(3, 4));
}

TEST_F(CRowsTest, TheFirstRowBehindStepsWithoutOneSaysThatThereIsNoneBeforeIt) {
  for (const std::optional<double> loss : {std::optional<double>(), std::optional(1.0)}) {
    RowTraining training = Train();
    training.Step(loss);
    training.Commit();
  }
  const RowTraining training = Train();
  ASSERT_THAT(Steps(), ElementsAre(2));
  EXPECT_EQ(Rows()[0]["previous_row"], 0);
}

TEST_F(CRowsTest, CurvesGoWithARunThatHasNoCommit) {
  InKilledProcess([&] {
    auto* const training = new RowTraining(InRun(), kHomes[3], drive_, json::object(), Curves());
    training->Step(1);
  });
  EXPECT_EQ(Curve("lr"), "step,lr\r\n1,0.01\r\n");
  {
    RowTraining training = Train(json::object(), Curves());
    training.Step(0.5, 0.02);
    EXPECT_EQ(Curve("lr"), "step,lr\r\n1,0.02\r\n");
  }
  EXPECT_THAT(FilesIn(root_ + "/job"), IsEmpty());
  EXPECT_THAT(FilesIn(run_), IsEmpty());
}

TEST_F(CRowsTest, CurvesOfAnotherTrainingAreRefusedBeforeAnythingIsMade) {
  {
    RowTraining training = Train(json::object(), Curves());
    training.Step(1);
    training.Commit();
  }
  const json other = {{"run", root_ + "/other"}, {"nvme_path", {drive_}}};
  const std::set<std::string> files = FilesIn(drive_);
  const std::string before = Curve("lr");
  const CRun run(other);
  const CEngine engine = run.Create(kHomes[3], drive_, json::object(), Curves());
  EXPECT_EQ(engine.code, PENSTOCK_INVALID_ARGUMENT);
  EXPECT_THAT(engine.error, HasSubstr("is there already, of another run; move it away"));
  EXPECT_EQ(FilesIn(drive_), files);
  EXPECT_EQ(Curve("lr"), before);
}

}  // namespace
}  // namespace penstock::front
