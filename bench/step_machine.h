// The training of a benchmark of whole steps: a GPT-2 with its device, operators and engine, made
// from a configuration, without files of a run. A formula generates the tokens.
//
// Threads: one at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/activity.h"
#include "bench/phase_engine.h"
#include "config/config.h"
#include "device/device.h"
#include "kernels/model/model_operators.h"
#include "kernels/state/state_operators.h"
#include "train/models/gpt2.h"
#include "zero/session/session.h"

namespace penstock::bench {

double SecondsSince(std::chrono::steady_clock::time_point begin);

struct StepModel {
  train::Gpt2Config config;
  train::BatchShape shape;
};

class StepMachine {
 public:
  struct Options {
    StepModel model;
    std::string config;  ///< DeepSpeed JSON
    Bytes device_memory;
    Bytes host_memory;
    std::string state_folder;
  };
  /// Creates it with new weights. Errors: those of the parts.
  static Result<StepMachine> Create(const Options& options);

  /// Enqueues forward and backward.
  Status Compute();
  /// Forward and backward to their end; calls `mark` on a thread of the device between the two.
  Status ComputePhases(const std::function<void()>& mark);
  /// The update; returns as soon as the engine does.
  Status Update();
  /// Waits for updates and write-backs.
  Status Drain();

  const config::Config& config() const { return config_; }
  zero::EngineCounters counters() const { return session_->counters(); }
  ActivityTotals activity() const { return meter_->Totals(); }
  uint64_t parameters() const;
  /// What the plan of the engine's memory was made from.
  Bytes device_for_engine() const { return device_for_engine_; }
  Bytes host_for_engine() const { return host_for_engine_; }
  const std::vector<std::string>& notices() const { return session_->notices(); }

 private:
  StepMachine() = default;
  Status Begin();

  config::Config config_;
  zero::ModelSpec spec_;
  std::vector<int32_t> inputs_;
  std::vector<int32_t> targets_;
  Bytes device_for_engine_;
  Bytes host_for_engine_;
  std::unique_ptr<ActivityMeter> meter_;
  std::unique_ptr<device::Device> device_;
  std::unique_ptr<kernels::ModelOperators> operators_;
  std::unique_ptr<train::Gpt2> model_;
  std::unique_ptr<kernels::StateOperators> state_operators_;
  std::unique_ptr<PhaseEngine> engine_;
  std::unique_ptr<zero::Session> session_;
  std::optional<zero::Step> step_;  ///< between Compute and Update
};

}  // namespace penstock::bench
