#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "tests/train/temp_folder.h"
#include "train/trainer_job.h"
#include "train/trainer_loop.h"

namespace penstock::train {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::json;

constexpr uint64_t kSequence = 4;

/// Tokens 0, 1, 2, …
class CountingTokens final : public TokenData {
 public:
  const std::string& path() const override { return path_; }
  uint64_t size() const override { return 10 * kSequence + 1; }
  Status Read(uint64_t begin, uint64_t, std::span<int32_t> tokens) override {
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(begin + i);
    return {};
  }

 private:
  const std::string path_ = "counting";
};

/// Records what the loop asks of it; steps are skipped as the test wants.
class ScriptedEngine final : public zero::Engine {
 public:
  struct StepCall {
    double lr;
    uint64_t t;
  };
  std::vector<StepCall> steps;
  std::vector<zero::TrainState> commits;
  std::vector<bool> skip;  ///< by step; those beyond it are not skipped
  size_t fail_steps_from = std::numeric_limits<size_t>::max();
  bool fail_commit = false;
  bool commit_is_lost = false;
  std::optional<Error> commit_unreadable;  ///< for another reason
  zero::EngineCounters totals;

  void ExpectLastStep() override { last_expected_after.push_back(steps.size()); }
  std::vector<size_t> last_expected_after;  ///< steps begun when it was said
  Status BeginStep(double lr, uint64_t t) override {
    steps.push_back({lr, t});
    return {};
  }
  Result<zero::StepOutcome> EndStep() override {
    EXPECT_FALSE(committing_.has_value()) << "an update would take what is being committed";
    if (steps.size() >= fail_steps_from) return MakeError(ErrorCode::kIo, "a bad block");
    totals.nvme_read_bytes += 14;
    totals.nvme_write_bytes += 12;
    const bool skipped = steps.size() <= skip.size() && skip[steps.size() - 1];
    return zero::StepOutcome{.grad_norm = skipped ? std::numeric_limits<double>::infinity() : 2.0,
                             .skipped = skipped};
  }
  void BeginCommit(const zero::TrainState& state, std::function<Status()> first) override {
    EXPECT_FALSE(committing_.has_value());
    EXPECT_TRUE(first().ok());
    committing_ = state;
  }
  Status FinishCommit() override {
    if (!committing_.has_value()) return {};
    const zero::TrainState state = *std::exchange(committing_, std::nullopt);
    if (fail_commit) return MakeError(ErrorCode::kOutOfSpace, "no space");
    totals.nvme_commit_bytes += 100;
    commits.push_back(state);
    return {};
  }
  Status CheckCommit() const override {
    if (commit_unreadable) return *commit_unreadable;
    if (!commit_is_lost) return {};
    return MakeError(ErrorCode::kNotFound, "the state file was deleted");
  }
  Status Drain() override { return {}; }
  zero::EngineCounters counters() const override { return totals; }
  Bytes host_peak() const override { return 5_MiB; }

  // What the loop leaves to the model and to the trainer.
  Status FillTiles(const zero::TileFill&) override { return NotForTheLoop(); }
  Result<zero::TrainState> Adopt() override { return NotForTheLoop().error(); }
  const offload::ShardLayout& layout() const override { return layout_; }
  device::Stream& compute_stream() override { std::abort(); }
  Result<const std::byte*> Acquire(zero::ModuleId) override { return NotForTheLoop().error(); }
  void Release(zero::ModuleId) override {}
  float* Gradients(zero::ModuleId) override { return nullptr; }
  Status ReduceGradients(zero::ModuleId) override { return NotForTheLoop(); }
  const std::string& aio_engine() const override { return text_; }
  const std::vector<std::string>& state_paths() const override { return paths_; }
  const std::string& state_uuid() const override { return text_; }
  const std::vector<std::string>& notices() const override { return notices_; }

 private:
  static Status NotForTheLoop() {
    return MakeError(ErrorCode::kInvalidArgument, "not for the loop");
  }
  std::optional<zero::TrainState> committing_;
  offload::ShardLayout layout_;
  std::string text_;
  std::vector<std::string> paths_;
  std::vector<std::string> notices_;
};

class ScriptedModel final : public Gpt2 {
 public:
  std::vector<std::vector<int32_t>> inputs;
  std::vector<std::vector<int32_t>> targets;

  Status ForwardBackward(zero::Engine&, std::span<const int32_t> in,
                         std::span<const int32_t> out) override {
    inputs.emplace_back(in.begin(), in.end());
    targets.emplace_back(out.begin(), out.end());
    return {};
  }
  Result<double> Loss() override {
    if (inputs.size() >= nan_from) return -std::numeric_limits<double>::quiet_NaN();
    return 10.0 - static_cast<double>(inputs.size());
  }
  size_t nan_from =
      std::numeric_limits<size_t>::max();  ///< step of the first loss that is not finite
};

class FakeDevice final : public device::Device {
 public:
  device::Kind kind() const override { return device::Kind::kCpu; }
  const std::string& name() const override { return name_; }
  std::string pci_bus_id() const override { return {}; }
  Bytes limit() const override { return 8_MiB; }
  Bytes used() const override { return 1_MiB; }
  Bytes peak() const override { return 2_MiB; }
  Result<std::unique_ptr<device::Stream>> CreateStream(const std::string&) override {
    return MakeError(ErrorCode::kUnavailable, "nothing to compute with");
  }

 protected:
  Result<std::byte*> Take(Bytes, const std::string&) override {
    return MakeError(ErrorCode::kBudget, "nothing to take");
  }
  void Give(std::byte*, Bytes) override {}
  Status Pin(std::span<std::byte>) override { return {}; }
  void Unpin(std::byte*) override {}

 private:
  const std::string name_ = "fake";
};

class TrainLoopTest : public ::testing::Test {
 protected:
  TrainLoopTest() {
    options_.config.micro_batch_size = 2;
    options_.config.gradient_accumulation_steps = 2;
    options_.config.commit_every_seconds = 0;
    options_.config.optimizer.lr = 0.5;
    options_.shape = {.micro_batch = 2, .micro_batches = 2, .sequence = kSequence};
    options_.cost = {.parameters = 10, .layers = 1, .width = 2, .sequence = kSequence};
    options_.start.seed = 9;
    options_.start.compute_threads = 2;
    options_.start.run_json = R"({"data": "D"})";
  }

  Result<LoopSummary> Run(uint64_t last_step) {
    options_.last_step = last_step;
    Result<BatchReader> data = BatchReader::Create(std::make_unique<CountingTokens>(),
                                                   DataOrder::kSequential, 0, kSequence, 1000);
    EXPECT_TRUE(data.ok()) << data.error().message;
    Result<MetricsWriter> metrics = MetricsWriter::Create(folder_.Open(), "metrics.jsonl");
    EXPECT_TRUE(metrics.ok()) << metrics.error().message;
    Progress progress({.out = stderr, .terminal = false, .every = 0});
    TrainLoop loop({.engine = engine_,
                    .model = model_,
                    .data = *data,
                    .device = device_,
                    .meter = meter_,
                    .metrics = *metrics,
                    .progress = progress,
                    .stop_requested = [this] { return model_.inputs.size() >= stop_after_; },
                    .keep_folder = [this] { folder_kept_ = true; },
                    .check_folder = [this]() -> Status {
                      if (engine_.commits.size() < gone_after_) return {};
                      return MakeError(ErrorCode::kNotFound, "RUN was removed");
                    }},
                   options_);
    return loop.Run();
  }

  std::vector<Json> Rows() const {
    std::vector<Json> rows;
    std::istringstream in(folder_.Read("metrics.jsonl"));
    for (std::string line; std::getline(in, line);) rows.push_back(Json::parse(line));
    return rows;
  }

  template <typename T>
  std::vector<T> Column(const std::string& name) const {
    std::vector<T> values;
    for (const Json& row : Rows()) values.push_back(row.at(name).get<T>());
    return values;
  }

  std::vector<uint64_t> CommittedSteps() const {
    std::vector<uint64_t> steps;
    for (const zero::TrainState& state : engine_.commits) steps.push_back(state.step);
    return steps;
  }

  const TempFolder folder_;
  ScriptedEngine engine_;
  ScriptedModel model_;
  FakeDevice device_;
  ActivityMeter meter_;
  LoopOptions options_;
  bool folder_kept_ = false;
  size_t stop_after_ = std::numeric_limits<size_t>::max();
  size_t gone_after_ = std::numeric_limits<size_t>::max();  ///< commits
};

TEST_F(TrainLoopTest, WritesOneRowAStepAndCommitsTheLast) {
  const Result<LoopSummary> summary = Run(3);
  ASSERT_TRUE(summary.ok()) << summary.error().message;
  EXPECT_THAT(Column<uint64_t>("step"), ElementsAre(1, 2, 3));
  EXPECT_THAT(Column<double>("loss"), ElementsAre(9, 8, 7));
  EXPECT_THAT(Column<double>("grad_norm"), Each(2.0));
  EXPECT_THAT(Column<double>("lr"), Each(0.5));
  EXPECT_THAT(Column<uint64_t>("tokens"), Each(16));
  EXPECT_THAT(Column<uint64_t>("nvme_read_bytes"), Each(14));
  EXPECT_THAT(Column<uint64_t>("nvme_write_bytes"), Each(12));
  EXPECT_THAT(Column<uint64_t>("device_peak_bytes"), Each((2_MiB).value));
  EXPECT_THAT(Column<uint64_t>("host_peak_bytes"), Each((5_MiB).value));
  EXPECT_THAT(CommittedSteps(), ElementsAre(3));
  EXPECT_EQ(summary->steps, 3U);
  EXPECT_EQ(summary->tokens, 48U);
  EXPECT_EQ(summary->first_loss, 9);
  EXPECT_EQ(summary->last_loss, 7);
  EXPECT_EQ(summary->committed_step, 3U);
  EXPECT_FALSE(summary->interrupted);
}

TEST_F(TrainLoopTest, ReadsMadeBeforeTheFirstStepAreItsOwnAndRowsSumUpToTheSummary) {
  engine_.totals.nvme_read_bytes = 7;
  const Result<LoopSummary> summary = Run(3);
  ASSERT_TRUE(summary.ok()) << summary.error().message;
  EXPECT_THAT(Column<uint64_t>("nvme_read_bytes"), ElementsAre(21, 14, 14));
  EXPECT_EQ(summary->end.counters.nvme_read_bytes - summary->begin.counters.nvme_read_bytes, 49U);
}

TEST_F(TrainLoopTest, GivesEachStepItsMicroBatchesInOrder) {
  ASSERT_TRUE(Run(2).ok());
  ASSERT_EQ(model_.inputs.size(), 2U);
  // Four rows of four tokens a step; ten rows an epoch.
  for (size_t i = 0; i < 16; ++i) {
    EXPECT_EQ(model_.inputs[0][i], static_cast<int32_t>(i));
    EXPECT_EQ(model_.inputs[1][i], static_cast<int32_t>(16 + i));
    EXPECT_EQ(model_.targets[1][i], static_cast<int32_t>(17 + i));
  }
}

TEST_F(TrainLoopTest, WithoutStepsOnlyCommits) {
  const Result<LoopSummary> summary = Run(0);
  ASSERT_TRUE(summary.ok()) << summary.error().message;
  EXPECT_THAT(CommittedSteps(), ElementsAre(0));
  EXPECT_TRUE(folder_kept_);
  EXPECT_TRUE(Rows().empty());
  EXPECT_FALSE(summary->first_loss.has_value());
}

TEST_F(TrainLoopTest, SkippedStepsAdvanceNeitherAdamsCountNorTheSchedule) {
  options_.config.scheduler.type = zero::SchedulerType::kWarmupLr;
  options_.config.scheduler.warmup_num_steps = 10;
  options_.config.scheduler.warmup_type = zero::WarmupType::kLinear;
  engine_.skip = {false, true, true, false};
  const Result<LoopSummary> summary = Run(5);
  ASSERT_TRUE(summary.ok()) << summary.error().message;
  std::vector<uint64_t> t;
  for (const auto& call : engine_.steps) {
    t.push_back(call.t);
    EXPECT_EQ(call.lr, zero::LearningRate(options_.config.scheduler, 0.5, call.t));
  }
  EXPECT_THAT(t, ElementsAre(1, 2, 2, 2, 3));
  EXPECT_THAT(Column<bool>("skipped"), ElementsAre(false, true, true, false, false));
  EXPECT_TRUE(Rows()[1].at("grad_norm").is_null());
  EXPECT_EQ(summary->skipped, 2U);
  ASSERT_EQ(engine_.commits.size(), 1U);
  EXPECT_EQ(engine_.commits[0].step, 5U);
  EXPECT_EQ(engine_.commits[0].optimizer_steps, 3U);
  EXPECT_EQ(engine_.commits[0].skipped_in_a_row, 0U);
}

TEST_F(TrainLoopTest, TwentySkippedStepsInARowEndTheRunWithAllRowsAndNoCommit) {
  engine_.skip.assign(100, true);
  engine_.skip[0] = false;
  const Result<LoopSummary> summary = Run(100);
  ASSERT_FALSE(summary.ok());
  EXPECT_EQ(summary.error().code, ErrorCode::kNumeric);
  EXPECT_THAT(summary.error().message, HasSubstr("nothing was committed yet"));
  EXPECT_EQ(Rows().size(), 21U);
  EXPECT_TRUE(engine_.commits.empty());
  EXPECT_TRUE(folder_kept_);
}

TEST_F(TrainLoopTest, AFailureAfterACommitSaysWhichStepIsCommitted) {
  options_.config.commit_every_steps = 2;
  engine_.fail_steps_from = 4;
  const Result<LoopSummary> durable = Run(5);
  ASSERT_FALSE(durable.ok());
  EXPECT_EQ(durable.error().code, ErrorCode::kIo);
  EXPECT_THAT(durable.error().message, HasSubstr("a bad block; step 2 is committed"));
  EXPECT_EQ(Rows().size(), 3U);
}

TEST_F(TrainLoopTest, ARunWhoseFolderIsGoneAtACommitEndsThereAndSaysWhatIsCommitted) {
  options_.config.commit_every_steps = 2;
  gone_after_ = 2;
  EXPECT_TRUE(
      FailsWith(Run(8), ErrorCode::kNotFound, {"RUN was removed", "step 4 is committed in"}));
  EXPECT_THAT(CommittedSteps(), ElementsAre(2, 4));
}

TEST_F(TrainLoopTest, AFailureDoesNotCallACommitMadeThatIsLost) {
  options_.config.commit_every_steps = 2;
  engine_.fail_steps_from = 4;
  engine_.commit_is_lost = true;
  const Result<LoopSummary> summary = Run(5);
  ASSERT_FALSE(summary.ok());
  EXPECT_EQ(summary.error().code, ErrorCode::kIo);
  EXPECT_THAT(summary.error().message, HasSubstr("step 2 was committed"));
  EXPECT_THAT(summary.error().message,
              HasSubstr("that commit is lost: the state file was deleted"));
}

TEST_F(TrainLoopTest, ACommitThatCannotBeReadBackIsLostOnlyWhereItsFileIsGoneOrDamaged) {
  options_.config.commit_every_steps = 2;
  engine_.fail_steps_from = 4;
  const std::pair<ErrorCode, bool> causes[] = {
      {ErrorCode::kNotFound, true},    {ErrorCode::kCorruption, true},
      {ErrorCode::kPermission, false}, {ErrorCode::kOutOfMemory, false},
      {ErrorCode::kIo, false},         {ErrorCode::kUnavailable, false}};
  for (const auto& [code, lost] : causes) {
    engine_.steps.clear();
    engine_.commit_unreadable = MakeError(code, "the reason");
    std::filesystem::remove(folder_.Path("metrics.jsonl"));
    const Result<LoopSummary> summary = Run(5);
    ASSERT_FALSE(summary.ok());
    EXPECT_THAT(summary.error().message,
                AllOf(HasSubstr("step 2 was committed"), HasSubstr(": the reason")));
    EXPECT_EQ(summary.error().message.find("lost") != std::string::npos, lost)
        << summary.error().message;
  }
}

TEST_F(TrainLoopTest, AFailureSaysOnceWhyACommitCannotBeReadBack) {
  options_.config.commit_every_steps = 2;
  engine_.fail_steps_from = 4;
  engine_.commit_unreadable = MakeError(ErrorCode::kIo, "a bad block");
  const Result<LoopSummary> summary = Run(5);
  ASSERT_FALSE(summary.ok());
  EXPECT_THAT(summary.error().message, HasSubstr("a bad block; step 2 was committed"));
  EXPECT_EQ(summary.error().message.find("a bad block"),
            summary.error().message.rfind("a bad block"));
}

TEST_F(TrainLoopTest, ANumericFailureNamesResumeOnlyWhereTheCommitStands) {
  model_.nan_from = 3;
  options_.config.commit_every_steps = 2;
  for (const bool durable : {false, true}) {
    for (const bool lost : {false, true}) {
      options_.config.durable = durable;
      engine_.commit_is_lost = lost;
      model_.inputs.clear();
      std::filesystem::remove(folder_.Path("metrics.jsonl"));
      const Result<LoopSummary> summary = Run(4);
      ASSERT_FALSE(summary.ok());
      const std::string& message = summary.error().message;
      EXPECT_EQ(summary.error().code, ErrorCode::kNumeric);
      EXPECT_EQ(message.find("step 2 is committed") != std::string::npos, !lost) << message;
      EXPECT_EQ(message.find("--resume") != std::string::npos, !lost) << message;
      EXPECT_EQ(message.find("begin a new run:") != std::string::npos, lost) << message;
      EXPECT_EQ(message.find("take a commit back") != std::string::npos, lost && !durable)
          << message;
    }
  }
}

TEST_F(TrainLoopTest, ATrainingWhoseLastCommitIsLostDoesNotSucceed) {
  engine_.commit_is_lost = true;
  const Result<LoopSummary> summary = Run(2);
  ASSERT_FALSE(summary.ok());
  EXPECT_EQ(summary.error().code, ErrorCode::kNotFound);
}

TEST_F(TrainLoopTest, AFailureOfARunThatIsNotDurableDoesNotPromiseItsCommit) {
  options_.config.durable = false;
  options_.config.commit_every_steps = 2;
  engine_.fail_steps_from = 4;
  engine_.commit_is_lost = true;
  const Result<LoopSummary> summary = Run(5);
  ASSERT_FALSE(summary.ok());
  EXPECT_THAT(summary.error().message, HasSubstr("step 2 was committed, but"));
}

TEST_F(TrainLoopTest, NoCommitIsMadeWhileLossesOrGradientsAreNotFinite) {
  options_.config.commit_every_steps = 1;
  engine_.skip = {false, true, true, false};
  ASSERT_TRUE(Run(5).ok());
  EXPECT_THAT(CommittedSteps(), ElementsAre(1, 4, 5));
}

TEST_F(TrainLoopTest, ACommitThatIsDueAtAStepThatIsNotSoundIsMadeAtTheNextThatIs) {
  options_.config.commit_every_steps = 4;
  engine_.skip = {false, false, false, true, true};
  ASSERT_TRUE(Run(11).ok());
  EXPECT_THAT(CommittedSteps(), ElementsAre(6, 8, 11));
}

TEST_F(TrainLoopTest, ASkippedStepWithALossThatIsNotFiniteIsCommittedLastAsItChangedNothing) {
  engine_.skip = {false, false, true};
  model_.nan_from = 3;
  for (const bool asked_to_stop : {false, true}) {
    engine_.steps.clear();
    engine_.commits.clear();
    model_.inputs.clear();
    std::filesystem::remove(folder_.Path("metrics.jsonl"));
    if (asked_to_stop) stop_after_ = 3;
    const Result<LoopSummary> summary = Run(asked_to_stop ? 100 : 3);
    ASSERT_TRUE(summary.ok()) << summary.error().message;
    EXPECT_THAT(CommittedSteps(), ElementsAre(3));
    EXPECT_EQ(engine_.commits[0].optimizer_steps, 2U);
  }
}

TEST_F(TrainLoopTest, ASecondLossInARowThatIsNotFiniteSpeaksAgainstTheWeights) {
  engine_.skip = {false, true, true};
  model_.nan_from = 2;
  const Result<LoopSummary> summary = Run(3);
  ASSERT_FALSE(summary.ok());
  EXPECT_EQ(summary.error().code, ErrorCode::kNumeric);
  EXPECT_TRUE(engine_.commits.empty());
}

TEST_F(TrainLoopTest, AfterALossThatIsNotFiniteTheCommitBeforeItIsTheNewestWhateverEndsTheRun) {
  options_.config.commit_every_steps = 1;
  for (const bool asked_to_stop : {false, true}) {
    engine_.commits.clear();
    model_.inputs.clear();
    model_.nan_from = 3;
    if (asked_to_stop) stop_after_ = 4;
    std::filesystem::remove(folder_.Path("metrics.jsonl"));
    const Result<LoopSummary> summary = Run(asked_to_stop ? 100 : 4);
    ASSERT_FALSE(summary.ok());
    EXPECT_EQ(summary.error().code, ErrorCode::kNumeric);
    EXPECT_THAT(summary.error().message,
                AllOf(HasSubstr("step 4: the loss is not finite"), HasSubstr("step 2 is committed"),
                      HasSubstr("penstock export")));
    EXPECT_THAT(CommittedSteps(), ElementsAre(1, 2));
    EXPECT_EQ(Rows().size(), 4U);
  }
}

TEST_F(TrainLoopTest, ASkippedLastStepWithAFiniteLossIsCommittedAsItChangedNothing) {
  engine_.skip = {false, false, true};
  ASSERT_TRUE(Run(3).ok());
  EXPECT_THAT(CommittedSteps(), ElementsAre(3));
}

TEST_F(TrainLoopTest, TheEngineIsToldOfTheLastStepAloneAndBeforeItBegins) {
  ASSERT_TRUE(Run(3).ok());
  EXPECT_THAT(engine_.last_expected_after, ElementsAre(2));
}

TEST_F(TrainLoopTest, NineteenSkippedStepsInARowDoNotEndTheRun) {
  engine_.skip.assign(19, true);
  EXPECT_TRUE(Run(21).ok());
  EXPECT_EQ(Rows().size(), 21U);
}

TEST_F(TrainLoopTest, CommitsEveryNStepsAndTheLastOnlyOnce) {
  options_.config.commit_every_steps = 2;
  ASSERT_TRUE(Run(6).ok());
  EXPECT_THAT(CommittedSteps(), ElementsAre(2, 4, 6));
}

TEST_F(TrainLoopTest, CommitsAfterAsManySecondsAsTheConfigSays) {
  options_.config.commit_every_seconds = 1e-12;
  ASSERT_TRUE(Run(3).ok());
  EXPECT_THAT(CommittedSteps(), ElementsAre(1, 2, 3));
}

TEST_F(TrainLoopTest, ACommitHoldsTheRunAndTheRowOfItsStep) {
  options_.config.commit_every_steps = 1;
  ASSERT_TRUE(Run(2).ok());
  ASSERT_EQ(engine_.commits.size(), 2U);
  EXPECT_EQ(engine_.commits[0].seed, 9U);
  EXPECT_EQ(engine_.commits[0].compute_threads, 2U);
  const Json json = Json::parse(engine_.commits[0].run_json);
  EXPECT_EQ(json.at("run").at("data"), "D");
  EXPECT_EQ(json.at("row").at("step"), 1);
  EXPECT_EQ(json.at("row").at("loss"), 9.0);
}

TEST_F(TrainLoopTest, WhenAskedToStopFinishesTheStepAndCommitsIt) {
  stop_after_ = 2;
  const Result<LoopSummary> summary = Run(100);
  ASSERT_TRUE(summary.ok()) << summary.error().message;
  EXPECT_TRUE(summary->interrupted);
  EXPECT_EQ(summary->last_step, 2U);
  EXPECT_THAT(CommittedSteps(), ElementsAre(2));
  EXPECT_EQ(Rows().size(), 2U);
}

TEST_F(TrainLoopTest, AskedToStopAfterAPeriodicCommitDoesNotCommitTwice) {
  options_.config.commit_every_steps = 2;
  stop_after_ = 2;
  ASSERT_TRUE(Run(100).ok());
  EXPECT_THAT(CommittedSteps(), ElementsAre(2));
}

TEST_F(TrainLoopTest, FailuresOfTheEngineAreItsErrors) {
  engine_.fail_steps_from = 1;
  const Result<LoopSummary> step = Run(3);
  ASSERT_FALSE(step.ok());
  EXPECT_EQ(step.error().code, ErrorCode::kIo);
  EXPECT_EQ(step.error().message, "a bad block");
  EXPECT_TRUE(engine_.commits.empty());
  EXPECT_FALSE(folder_kept_);
}

TEST_F(TrainLoopTest, AFailedCommitEndsTheRun) {
  engine_.fail_commit = true;
  const Result<LoopSummary> summary = Run(1);
  ASSERT_FALSE(summary.ok());
  EXPECT_EQ(summary.error().code, ErrorCode::kOutOfSpace);
  EXPECT_EQ(Rows().size(), 1U);
  EXPECT_TRUE(folder_kept_);
}

}  // namespace
}  // namespace penstock::train
