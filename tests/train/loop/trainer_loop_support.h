// The loop over steps with an engine and a model that do as a test says.
#pragma once

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

#include "run/observers/observer_list.h"
#include "run/observers/row_files.h"
#include "tests/temp_folder.h"
#include "train/loop/trainer_loop.h"
#include "train/trainer/trainer_job.h"
#include "zero/engine/forwarding_engine.h"

namespace penstock::train {

inline constexpr uint64_t kSequence = 4;

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
class ScriptedEngine final : public zero::ForwardingEngine {
 public:
  struct StepCall {
    double lr;
    uint64_t t;
  };
  std::vector<StepCall> steps;
  std::vector<zero::TrainState> commits;
  std::vector<bool> skip;  ///< by step; those beyond it are not skipped
  size_t fail_steps_from = std::numeric_limits<size_t>::max();
  double norm = 2.0;  ///< of gradients that are finite
  bool fail_commit = false;
  size_t refuse_commits_from = std::numeric_limits<size_t>::max();  ///< step whose weights are bad
  bool commit_is_lost = false;
  std::optional<Error> commit_unreadable;  ///< for another reason
  zero::EngineCounters totals;

  bool taken_back = false;

  void ExpectLastStep() override { last_expected_after.push_back(steps.size()); }
  std::vector<size_t> last_expected_after;  ///< steps begun when it was said
  Status BeginStep(double lr, uint64_t t) override {
    steps.push_back({lr, t});
    return {};
  }
  Result<zero::GradientNorm::Value> FinishGradients() override {
    EXPECT_FALSE(committing_.has_value()) << "an update would take what is being committed";
    if (steps.size() >= fail_steps_from) return MakeError(ErrorCode::kIo, "a bad block");
    totals.nvme_read_bytes += 14;
    totals.nvme_write_bytes += 12;
    const bool skipped = steps.size() <= skip.size() && skip[steps.size() - 1];
    return zero::GradientNorm::Value{
        .norm = skipped ? std::numeric_limits<double>::infinity() : norm, .finite = !skipped};
  }
  Status UpdateStep(double) override { return {}; }
  Status SkipStep() override { return {}; }
  Status DropStep() override { return {}; }
  void AllowUpdates() override {}
  void BeginCommit(const zero::TrainState& state, std::function<Status()> first) override {
    EXPECT_FALSE(committing_.has_value());
    EXPECT_TRUE(first().ok());
    committing_ = state;
  }
  Status FinishCommit() override {
    if (!committing_.has_value()) return {};
    const zero::TrainState state = *std::exchange(committing_, std::nullopt);
    if (fail_commit) return MakeError(ErrorCode::kOutOfSpace, "no space");
    if (state.step >= refuse_commits_from) {
      return MakeError(ErrorCode::kNumeric, "the last update has destroyed the weights");
    }
    totals.nvme_commit_bytes += 100;
    commits.push_back(state);
    return {};
  }
  Status TakeBackCommit() override {
    taken_back = true;
    commits.pop_back();
    return {};
  }
  Status CheckCommit() const override {
    if (taken_back && commits.empty()) return MakeError(ErrorCode::kNotFound, "no commit");
    if (commit_unreadable) return *commit_unreadable;
    if (!commit_is_lost) return {};
    return MakeError(ErrorCode::kNotFound, "the state file was deleted");
  }
  Status Drain() override { return {}; }
  zero::EngineCounters counters() const override { return totals; }
  const zero::StepFigures& figures() const override { return figures_; }
  Bytes host_peak() const override { return 5_MiB; }
  const zero::EngineOptions& options() const override { return made_with; }
  zero::EngineOptions made_with;

  /// The commit from which the run resumes; none: it is a new one.
  std::optional<zero::TrainState> resumes;
  Result<zero::TrainState> Adopt() override {
    commits.push_back(*resumes);
    return *resumes;
  }

  // The loop leaves the rest to the model and to the trainer.
  Status FillTiles(const zero::TileFill&) override { return {}; }
  const offload::ShardLayout& layout() const override { return layout_; }
  const std::vector<std::string>& state_paths() const override { return paths_; }

 private:
  std::optional<zero::TrainState> committing_;
  zero::StepFigures figures_;
  offload::ShardLayout layout_;
  std::vector<std::string> paths_;
};

class ScriptedModel final : public Model {
 public:
  std::vector<std::vector<int32_t>> inputs;
  std::vector<std::vector<int32_t>> targets;

  Status ForwardBackward(zero::Step& step, std::span<const int32_t> in,
                         std::span<const int32_t> out) override {
    inputs.emplace_back(in.begin(), in.end());
    targets.emplace_back(out.begin(), out.end());
    if (inputs.size() >= fail_from) return MakeError(ErrorCode::kUnavailable, "the device is gone");
    step.ReportLoss(Loss().value());
    return {};
  }
  ComputePlace place() const override { return {}; }
  Result<double> Loss() override {
    if (inputs.size() >= nan_from) return -std::numeric_limits<double>::quiet_NaN();
    return 10.0 - static_cast<double>(inputs.size());
  }
  size_t nan_from =
      std::numeric_limits<size_t>::max();  ///< step of the first loss that is not finite
  size_t fail_from = std::numeric_limits<size_t>::max();  ///< step whose forward fails
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

/// RUN as a test wants it, and what is noted in it.
class ScriptedFolder final : public StepObserver {
 public:
  explicit ScriptedFolder(const ScriptedEngine& engine) : engine_(engine) {}

  bool kept = false;
  size_t gone_after = std::numeric_limits<size_t>::max();  ///< commits
  /// The commit in doubt (-1: none), and the newest one when that was said; one entry a change.
  std::vector<std::pair<int, int>> doubts;
  std::optional<size_t> commits_at_failure;  ///< how many there were when it was told of one

  Status AfterStep(DoneStep& step) override {
    Note(step.doubted_commit);
    kept = true;
    return {};
  }
  Status AfterCommit() override {
    if (engine_.commits.size() >= gone_after) {
      return MakeError(ErrorCode::kNotFound, "RUN was removed");
    }
    kept = true;
    return {};
  }
  void Failing(const Error&, const std::optional<uint64_t>& doubted_commit) override {
    Note(doubted_commit);
    commits_at_failure = engine_.commits.size();
  }
  void AtEnd(const TrainingEnd& end) override {
    Note(end.doubted_commit);
    kept = kept || end.begun;
  }

 private:
  void Note(const std::optional<uint64_t>& doubted) {
    const int step = doubted ? static_cast<int>(*doubted) : -1;
    if (step == (doubts.empty() ? -1 : doubts.back().first)) return;
    doubts.emplace_back(step, engine_.commits.back().step);
  }

  const ScriptedEngine& engine_;
};

class TrainLoopTest : public ::testing::Test {
 protected:
  TrainLoopTest() {
    options_.config.train_batch_size = 4;
    options_.config.micro_batch_size = 2;
    options_.config.gradient_accumulation_steps = 2;
    options_.config.commit_every_seconds = 0;
    options_.config.optimizer.lr = 0.5;
    shape_ = {.micro_batch = 2, .micro_batches = 2, .sequence = kSequence};
    options_.cost = {.parameters = 10, .layers = 1, .width = 2, .sequence = kSequence};
    options_.config.check_grad_overflow = true;
    options_.config.compute_threads = 2;
    options_.run_json = R"({"data": "D"})";
  }

  Result<LoopSummary> Run(uint64_t last_step) {
    options_.last_step = last_step;
    Result<BatchReader> data = BatchReader::Create(std::make_unique<CountingTokens>(),
                                                   DataOrder::kSequential, 0, kSequence, 1000);
    EXPECT_TRUE(data.ok()) << data.error().message;
    Result<MetricsWriter> metrics = MetricsWriter::Create(folder_.Open(), "metrics.jsonl");
    EXPECT_TRUE(metrics.ok()) << metrics.error().message;
    engine_.made_with = {.config = options_.config, .seed = 9};
    zero::Session session(engine_);
    EXPECT_TRUE(engine_.resumes ? session.Adopt().ok() : session.Initialize({}).ok());
    StepBatch batch(*data, shape_, options_.config, {}, consumed_samples_);
    RankNotes notes({.session = session,
                     .device = device_,
                     .meter = meter_,
                     .stop_requested = [this] { return model_.inputs.size() >= stop_after_; }},
                    {}, {});
    RowFiles rows(*metrics, nullptr);
    ObserverList observers;
    observers.Add(Turn::kRows, rows);
    observers.Add(Turn::kFolder, run_);
    TrainLoop loop({.session = session,
                    .model = model_,
                    .batch = batch,
                    .notes = notes,
                    .observers = observers},
                   options_);
    return loop.Run();
  }

  std::vector<nlohmann::json> Rows() const {
    std::vector<nlohmann::json> rows;
    std::istringstream in(folder_.Read("metrics.jsonl"));
    for (std::string line; std::getline(in, line);) rows.push_back(nlohmann::json::parse(line));
    return rows;
  }

  template <typename T>
  std::vector<T> Column(const std::string& name) const {
    std::vector<T> values;
    for (const nlohmann::json& row : Rows()) values.push_back(row.at(name).get<T>());
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
  BatchShape shape_;
  LoopOptions options_;
  uint64_t consumed_samples_ = 0;
  ScriptedFolder run_{engine_};
  size_t stop_after_ = std::numeric_limits<size_t>::max();
};

}  // namespace penstock::train
