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
  /// Asked after every commit, before it counts: whether RUN is still there, with its rows.
  std::function<Status()> check_folder = [] { return Status(); };
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

/// "step 7 is committed in FILES", or that it was, where the newest commit cannot be read back, and
/// why, unless `failure`, which it is said after, says so itself.
std::string CommittedIn(uint64_t step, const zero::Engine& engine, const Error& failure);

class TrainLoop {
 public:
  /// What it takes of host memory for the tokens of a step.
  static Bytes TokenBytes(const Gpt2Shape& shape);

  TrainLoop(LoopParts parts, LoopOptions options);
  /// Ends a commit that was begun: it uses the parts.
  ~TrainLoop();
  TrainLoop(const TrainLoop&) = delete;
  TrainLoop& operator=(const TrainLoop&) = delete;

  /// Runs to the last step or until it is asked to stop, then commits. Errors: those of the parts;
  /// kNumeric after kMaxSkippedInARow skipped steps, and where the last step's loss is not finite
  /// and either that step changed the weights or the one before it was not sound.
  /// After a step was done they end with what is committed, and the rows of all steps that were
  /// done are written.
  Result<LoopSummary> Run();

 private:
  Status RunSteps();
  Status RunStep();
  Status ReadBatch(uint64_t step);
  /// Accounts for the outcome of a step in the state and in the sums.
  void Count(const StepRow& row);
  /// Ends the open row, if there is one, at `now`, where the next one begins.
  Status CloseRow(const Snapshot& now);
  /// Closes the row of the step before. Where it cannot be written, that step is committed.
  Status EndRow();
  bool CommitDue() const;
  /// What a failure leaves of the commits, for its message.
  std::string WhatIsCommitted(const Error& failure) const;
  /// What a numeric failure's message ends with: whether the commit can be resumed, or what else to
  /// do.
  std::string HowToGoOn() const;
  /// Training goes on beside a commit until the next update, which needs FinishCommit.
  void BeginCommit();
  /// Errors: of the engine; where the commit is made and the rows before it could not be made
  /// durable, that of the rows.
  Status FinishCommit();
  /// Commits the last step that was done, where it is not committed.
  Status CommitLast();
  Snapshot Now() const;

  LoopParts parts_;
  const LoopOptions options_;
  zero::TrainState state_;
  /// Whether nothing speaks against the weights as they are: a step with a loss or a gradient that
  /// is not finite does, until one without is done.
  bool sound_;
  bool sound_before_ = true;  ///< what sound_ was before the last step
  /// A number of steps has passed that asks for a commit; it waits for a step that is sound.
  bool commit_due_ = false;
  LoopSummary summary_;
  std::vector<int32_t> inputs_;
  std::vector<int32_t> targets_;
  std::optional<StepRow> row_;  ///< of the step that has not ended
  Snapshot row_begin_;
  Trace::Row steps_;                         ///< of the trace, where there is one
  std::optional<uint64_t> committing_step_;  ///< of the commit that was begun
  Status rows_synced_;                       ///< before that commit; set by whoever makes it
  std::optional<uint64_t> committed_step_;
  std::chrono::steady_clock::time_point last_commit_;
};

}  // namespace penstock::train
