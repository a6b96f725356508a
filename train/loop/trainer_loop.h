// The loop over steps: the parts of a step, in order, and the calls of observers.
//
// A step reads its data, computes forward and backward, waits for the commit that was begun before
// it, and updates. Its row is complete when the next step begins, and is written then; the last row
// is written after the final commit. A commit is made during the next step's forward and backward
// (train/loop/loop_commits.h). A new run with two slots commits step 0 during its first step, so
// that it can resume from its beginning even if that step destroys the weights.
//
// With several ranks, each has its own loop, and all take the same steps and make the same commits
// (train/loop/rank_notes.h). Observers use the values of a step (run/observers/step_observer.h).
// Threads: one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "config/config.h"
#include "run/identity/skipped_steps.h"
#include "run/observers/step_observer.h"
#include "train/loop/loop_commits.h"
#include "train/loop/metrics.h"
#include "train/loop/metrics_summary.h"
#include "train/loop/rank_notes.h"
#include "train/loop/step_batch.h"
#include "train/models/model.h"
#include "zero/session/session.h"

namespace penstock::train {

/// The parts that the loop uses; everything is borrowed.
struct LoopParts {
  zero::Session& session;
  Model& model;
  StepBatch& batch;
  RankNotes& notes;
  StepObserver& observers;
};

struct LoopOptions {
  config::Config config;
  ModelCost cost;
  uint64_t last_step = 0;
  /// Whether commits keep the number of samples, because the batch was changed. With a growing
  /// batch they always do.
  bool keeps_consumed_samples = false;
  std::string run_json;  ///< identifies the run; kept by every commit
  /// Keys whose values change with the first step of this loop.
  std::vector<std::string> changed = {};
  std::vector<StepRange> skips = {};  ///< steps to pass over; not the last one
  bool commits_last = true;           ///< false: the loop does not end with a commit
};

class TrainLoop {
 public:
  TrainLoop(LoopParts parts, LoopOptions options);

  /// Runs to the last step or until it is asked to stop, then commits. Errors: those of the parts;
  /// kNumeric after zero::kMaxSkippedInARow skipped steps, and if the losses of the last two steps
  /// are not finite; then a commit of weights after which no loss was finite is taken back. Once
  /// step 0 is committed or a step is done, the error ends with the state of the commits, and the
  /// rows of all finished steps are written.
  Result<LoopSummary> Run();

 private:
  Status RunSteps();
  /// Begins to commit step 0 of a new run.
  Status BeginRun();
  Status RunStep();
  /// Passes over the next steps that are not to be computed.
  Status PassOver();
  /// Calls the observers with the values of a step. `loss_scale`: the step's.
  Status TellOf(const StepRow& row, double loss_scale);
  void Count(const StepRow& row);
  /// Ends the open row, if there is one, at `now`, where the next one begins.
  Status CloseRow(const Reading& now);
  /// Closes the row of the previous step. If it cannot be written, that step is committed; not with
  /// several ranks, because the others do not know of the rows.
  Status EndRow();
  Status BeginCommit();
  /// Commits the last finished step, if it is not committed.
  Status CommitLast();
  /// Commits the last step, and completes the summary.
  Status EndRun();
  /// Ends a run that fails. Returns the error with the state of the commits.
  Error Fail(const Error& why);
  /// Returns the loss of the last step, finished or not, if one was computed.
  std::optional<double> LastLoss() const;
  /// Returns the step of the newest commit if no loss computed with its weights was finite. `loss`:
  /// of the finished step.

  const LoopParts parts_;
  const LoopOptions options_;
  LoopCommits commits_;
  LoopSummary summary_;
  bool begins_run_ = false;          ///< this loop began the commit of step 0
  bool computed_ = false;            ///< a forward and backward was computed
  bool first_is_known_ = false;      ///< the last step's first non-finite value is known
  std::optional<uint64_t> doubted_;  ///< see StepLife::Doubted
  std::optional<StepRow> row_;       ///< row of the open step
  Reading row_begin_;
};

}  // namespace penstock::train
