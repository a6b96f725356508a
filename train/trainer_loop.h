// The loop over steps: data in, forward and backward, update, one row each, commits when they are
// due.
//
// A row is complete when the next step's forward starts, so it is written then; the last one after
// the final commit. A commit is made beside the next step's forward and backward. Threads: one.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/activity.h"
#include "base/result.h"
#include "device/device.h"
#include "train/data.h"
#include "train/gpt2.h"
#include "train/metrics.h"
#include "train/metrics_summary.h"
#include "train/progress.h"
#include "train/snapshot_service.h"
#include "zero/config.h"
#include "zero/engine.h"

namespace penstock::train {

/// As many skipped steps in a row are a failure.
inline constexpr uint64_t kMaxSkippedInARow = 20;

/// What the loop works with; all of it is borrowed.
struct LoopParts {
  zero::Engine& engine;
  Gpt2& model;
  BatchReader& data;
  const device::Device& device;
  const ActivityMeter& meter;
  MetricsWriter& metrics;
  Progress& progress;
  std::function<bool()> stop_requested;  ///< asked before every step
  std::function<void()> keep_folder;     ///< called after every step and commit: RUN has results
  SnapshotService* snapshots = nullptr;  ///< none: nobody can ask for any
};

struct LoopOptions {
  zero::Config config;
  Gpt2Shape shape;
  ModelCost cost;
  uint64_t last_step = 0;
  /// Where the run stands. Its run_json identifies the run.
  zero::TrainState start;
  bool resumed = false;  ///< `start` is committed
};

class TrainLoop {
 public:
  TrainLoop(LoopParts parts, LoopOptions options);
  /// Ends a commit that was begun: it uses the parts.
  ~TrainLoop();
  TrainLoop(const TrainLoop&) = delete;
  TrainLoop& operator=(const TrainLoop&) = delete;

  /// Runs to the last step or until it is asked to stop, then commits. Errors: those of the parts;
  /// kNumeric after kMaxSkippedInARow skipped steps. After a step was done they end with what is
  /// committed, and the rows of all steps that were done are written.
  Result<LoopSummary> Run();

 private:
  Status RunSteps();
  Status RunStep();
  Status ReadBatch(uint64_t step);
  /// Accounts for the outcome of a step in the state and in the sums.
  void Count(const StepRow& row);
  /// Ends the open row, if there is one, at `now`, where the next one begins.
  Status CloseRow(const Snapshot& now);
  bool CommitDue() const;
  /// What a failure leaves of the commits, for its message.
  std::string WhatIsCommitted() const;
  /// Training goes on beside a commit until the next update, which needs FinishCommit.
  void BeginCommit();
  Status FinishCommit();
  Snapshot Now() const;

  LoopParts parts_;
  const LoopOptions options_;
  zero::TrainState state_;
  LoopSummary summary_;
  std::vector<int32_t> inputs_;
  std::vector<int32_t> targets_;
  std::optional<StepRow> row_;  ///< of the step that has not ended
  Snapshot row_begin_;
  Trace::Row steps_;                         ///< of the trace, where there is one
  std::optional<uint64_t> committing_step_;  ///< of the commit that was begun
  std::optional<uint64_t> committed_step_;
  std::chrono::steady_clock::time_point last_commit_;
};

}  // namespace penstock::train
