// The loop over steps: what a step is, in order, and who is told of it.
//
// A step reads its data, computes forward and backward, waits for the commit that was begun before
// it, and updates. Its row is complete when the next step begins, and is written then; the last row
// is written after the final commit. A commit is made beside the next step's forward and backward
// (train/loop/loop_commits.h). A new run with two slots commits step 0 beside its first step, so
// that it can go back to its beginning whatever that step makes of the weights.
//
// With several ranks, each has a loop of its own, and all take the same steps and make the same
// commits (train/loop/rank_notes.h). Everything that is done with what a step shows is an observer
// (run/observers/step_observer.h).
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

/// What the loop works with; everything is borrowed.
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
  /// Whether commits say how many samples were taken: a batch that was changed does. Growing ones
  /// always do.
  bool keeps_consumed_samples = false;
  std::string run_json;  ///< identifies the run; kept by every commit
  /// Keys whose values are others than before, from the first step of this loop on.
  std::vector<std::string> changed = {};
  std::vector<StepRange> skips = {};  ///< steps that are passed over; not the last one
  bool commits_last = true;           ///< false: the loop does not end with a commit
};

class TrainLoop {
 public:
  TrainLoop(LoopParts parts, LoopOptions options);

  /// Runs to the last step or until it is asked to stop, then commits. Errors: those of the parts;
  /// kNumeric after zero::kMaxSkippedInARow skipped steps, and if the losses of the last two steps
  /// are not finite; then a commit of weights after which no loss was finite is taken back. Once
  /// step 0 is committed or a step was done, the error ends with what is committed, and the rows of
  /// all steps that were done are written.
  Result<LoopSummary> Run();

 private:
  Status RunSteps();
  /// Begins to commit step 0 of a new run.
  Status BeginRun();
  Status RunStep();
  /// Passes over the steps that come next and are not to be computed.
  Status PassOver();
  /// Tells what a step shows. `loss_scale`: that it was computed with.
  Status TellOf(const StepRow& row, double loss_scale);
  void Count(const StepRow& row);
  /// Ends the open row, if there is one, at `now`, where the next one begins.
  Status CloseRow(const Reading& now);
  /// Closes the row of the step before. If it cannot be written, that step is committed; not with
  /// several ranks, of which the others have no part in the rows.
  Status EndRow();
  Status BeginCommit();
  /// Commits the last step that was done, if it is not committed.
  Status CommitLast();
  /// Commits the last step, and completes the summary.
  Status EndRun();
  /// Ends a run that fails. Returns the error with what is left.
  Error Fail(const Error& why);
  /// Returns the loss of the last step, finished or not, if one was computed.
  std::optional<double> LastLoss() const;
  /// Returns the step of the newest commit if no loss that its weights gave was finite. `loss`: of
  /// the step that is done.
  std::optional<uint64_t> DoubtedCommit(double loss) const;

  const LoopParts parts_;
  const LoopOptions options_;
  LoopCommits commits_;
  LoopSummary summary_;
  bool begins_run_ = false;          ///< the commit of step 0 was begun here
  bool computed_ = false;            ///< a forward and backward was
  bool first_is_known_ = false;      ///< of the values of the last step that are not finite
  std::optional<uint64_t> doubted_;  ///< see DoubtedCommit
  std::optional<StepRow> row_;       ///< of the step that has not ended
  Reading row_begin_;
};

}  // namespace penstock::train
