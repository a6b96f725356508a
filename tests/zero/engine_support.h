// The engine of a toy model in every placement, for tests.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "tests/zero/toy_model.h"

namespace penstock::zero {

inline constexpr uint64_t kLayers = 4;
inline constexpr uint64_t kLayerElements = 30000;
inline constexpr uint64_t kSteps = 6;

struct Rule {
  kernels::OptimizerHyperparameters hyper = kernels::AdamHyperparameters{.weight_decay = 0.1};
  double initial_accumulator_value = 0;
  DType moments = DType::kFloat32;
};

struct Placement {
  std::string name;
  DType dtype = DType::kBFloat16;
  Tier parameters = Tier::kNvme;
  Tier optimizer = Tier::kNvme;
  Rule rule;
  uint64_t seed = 5;
  aio::EngineKind engine = aio::EngineKind::kThreads;
  uint64_t tile_elements = 8192;
  int optimizer_threads = 1;
  int queue_depth = 8;
  bool overlap = true;
  bool tier_split = false;
  bool with_gradients = false;  ///< nothing needs all gradients: updates begin with their own
  bool durable = true;
  bool smallest_host = true;
  bool smallest_device = true;
  Bytes more_host = {};              ///< above the smallest
  std::vector<double> drives = {1};  ///< speeds of the drives, a path each
};

class EngineTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        std::filesystem::path(::testing::TempDir()) / ("engine_test." + std::to_string(::getpid()));
    std::filesystem::create_directory(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  EngineOptions Options(const Placement& placement) const {
    EngineOptions options;
    options.model = ToySpec(kLayers, kLayerElements);
    config::Config& config = options.config;
    config.dtype = placement.dtype;
    config.check_grad_overflow = !placement.with_gradients;
    if (placement.dtype == DType::kFloat16) config.loss_scaling.emplace();
    if (placement.with_gradients) config.gradient_clipping = 0;
    config.parameter_home = placement.parameters;
    config.optimizer_home = placement.optimizer;
    config.tile_elements = placement.tile_elements;
    config.optimizer.hyper = placement.rule.hyper;
    config.optimizer.initial_accumulator_value = placement.rule.initial_accumulator_value;
    config.optimizer.moments = placement.rule.moments;
    options.seed = placement.seed;
    config.optimizer_threads = placement.optimizer_threads;
    config.overlap = placement.overlap;
    config.tier_split = placement.tier_split;
    config.durable = placement.durable;
    config.aio.kind = placement.engine;
    config.aio.queue_depth = placement.queue_depth;
    config.aio.block_size = 64_KiB;
    for (size_t i = 0; i < placement.drives.size(); ++i) {
      const std::filesystem::path drive = folder_ / ("drive" + std::to_string(i));
      std::filesystem::create_directory(drive);
      options.state_folders.push_back(drive);
    }
    options.probe = [drives = placement.drives](aio::Engine&, const aio::File& file, Bytes) {
      return Result<double>(drives.at(DriveOf(file.path())));
    };
    options.host_memory =
        placement.smallest_host
            ? Engine::MinimumMemory(options.model, config).host_minimum + placement.more_host
            : 64_MiB;
    return options;
  }

  /// The index of the drive on which a file lies.
  static size_t DriveOf(const std::string& path) {
    return static_cast<size_t>(path.at(path.find("/drive") + 6) - '0');
  }

  bool DrivesAreEmpty() const {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_)) {
      if (entry.is_regular_file()) return false;
    }
    return true;
  }

  /// The smallest device is the engine's minimum.
  static Bytes DeviceMemory(const Placement& placement, const EngineOptions& options) {
    if (!placement.smallest_device) return 64_MiB;
    return Engine::MinimumMemory(options.model, options.config).device_minimum;
  }

  struct Outcome {
    std::vector<double> norms;
    std::vector<float> weights;
    std::vector<float> exp_avg;
    std::vector<float> exp_avg_sq;
    EngineCounters counters;
    ActivityTotals times;
  };

  /// Step `step` of every run here, as Adam's step `t`. Where steps may be skipped, step 3's
  /// gradient is not finite: it must be skipped everywhere alike.
  static Result<StepOutcome> TrainStep(ToyRun& run, uint64_t step, uint64_t t, bool skip = true) {
    return run.Step(t, skip && step == 3 ? std::numeric_limits<float>::infinity()
                                         : 1.0F / static_cast<float>(step));
  }

  Outcome Train(const Placement& placement, uint64_t commit_at = kSteps) {
    const EngineOptions options = Options(placement);
    ToyRun run(options, DeviceMemory(placement, options));
    EXPECT_TRUE(run.created().ok()) << placement.name << ": " << run.created().error().message;
    EXPECT_TRUE(run.session().Initialize(ToyWeights).ok());
    Outcome outcome;
    uint64_t t = 1;
    for (uint64_t step = 1; step <= kSteps; ++step) {
      const bool skip = !placement.with_gradients;
      const auto result = TrainStep(run, step, t, skip);
      EXPECT_TRUE(result.ok()) << placement.name << ": " << result.error().message;
      if (!result.ok()) return outcome;
      EXPECT_EQ(result->skipped, skip && step == 3);
      if (!result->skipped) {
        ++t;
        outcome.norms.push_back(result->grad_norm);
      }
      if (step == commit_at) BeginCommit(run, step, t - 1);
    }
    EXPECT_TRUE(run.session().FinishCommit().ok());
    EXPECT_TRUE(run.session().Drain().ok());
    if (commit_at != kSteps) Commit(run, kSteps, t - 1);
    outcome.counters = run.session().counters();
    outcome.times = run.meter().Totals();
    EXPECT_LE(run.session().host_peak(), options.host_memory);
    state_paths_ = run.session().state_paths();
    EXPECT_EQ(state_paths_.size(), placement.drives.size());
    for (const std::string& path : state_paths_) EXPECT_EQ(::access(path.c_str(), R_OK), 0);
    return outcome;
  }

  /// Before its next update ToyRun waits for it.
  static void BeginCommit(ToyRun& run, uint64_t step, uint64_t updates) {
    EXPECT_EQ(run.session().state().step, step);
    EXPECT_EQ(run.session().state().optimizer_steps, updates);
    EXPECT_TRUE(run.session().BeginCommit("{\"toy\":1}").ok());
  }

  static void Commit(ToyRun& run, uint64_t step, uint64_t updates) {
    BeginCommit(run, step, updates);
    const Status committed = run.session().FinishCommit();
    ASSERT_TRUE(committed.ok()) << committed.error().message;
  }

  Outcome TrainAndRead(const Placement& placement, uint64_t commit_at = kSteps) {
    Outcome outcome = Train(placement, commit_at);
    ReadStates(&outcome);
    return outcome;
  }

  void ReadStates(Outcome* outcome) const {
    outcome->weights = CommittedValues(state_paths_, StateKind::kMaster);
    outcome->exp_avg = CommittedValues(state_paths_, StateKind::kExpAvg);
    outcome->exp_avg_sq = CommittedValues(state_paths_, StateKind::kExpAvgSq);
  }

  /// What is damaged.
  static std::vector<std::string> Damages(CommittedState& state) {
    const Result<CommitCheck> check = state.Check(offload::kNoProgress);
    EXPECT_TRUE(check.ok()) << check.error().message;
    EXPECT_GT(check->read, 0_B);
    return check->damages;
  }

  static void FlipBit(const std::string& path, uint64_t at) {
    FILE* file = std::fopen(path.c_str(), "r+b");
    ASSERT_NE(file, nullptr);
    std::fseek(file, static_cast<long>(at), SEEK_SET);
    const int byte = std::fgetc(file);
    std::fseek(file, static_cast<long>(at), SEEK_SET);
    std::fputc(byte ^ 1, file);
    std::fclose(file);
  }

  static void ExpectSameBits(const Outcome& a, const Outcome& b, const std::string& name) {
    ASSERT_EQ(a.norms.size(), b.norms.size()) << name;
    if (!a.norms.empty()) {
      EXPECT_EQ(0, std::memcmp(a.norms.data(), b.norms.data(), a.norms.size() * sizeof(double)))
          << name;
    }
    for (const auto states : {&Outcome::weights, &Outcome::exp_avg, &Outcome::exp_avg_sq}) {
      ASSERT_EQ((a.*states).size(), (b.*states).size()) << name;
      const auto bits = [](const std::vector<float>& values) {
        return std::as_bytes(std::span(values));
      };
      EXPECT_TRUE(std::ranges::equal(bits(a.*states), bits(b.*states))) << name;
    }
  }

  std::filesystem::path folder_;
  std::vector<std::string> state_paths_;
};

}  // namespace penstock::zero
