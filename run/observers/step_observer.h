// The interface of observers of a training's steps and commits: rows, curves, numerics, progress,
// snapshots.
//
// Only values pass here. An observer knows neither the loop, nor the model, nor how a step is
// computed, so other front ends than `penstock train` can use the same observers.
// run/observers/observer_list.h gives the order of several.
//
//   of each step      AfterStep, when it was decided on; AfterRow, when the next one begins or the
//                     training ends, and it has been measured
//   of each commit    ReleaseCommit, SyncRows, AfterCommit or CommitRefused; KeepCommit
//   at the end        Failing, if it fails; AtEnd
//
// Threads: the one that runs the steps, but for SyncRows.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "numerics/step_numbers.h"
#include "run/rows/metrics_file.h"
#include "zero/states/tensor_figures.h"

namespace penstock::train {

/// A step that was applied or skipped. Its update may still be under way.
struct DoneStep {
  StepNumbers numbers;            ///< but for median_step_s and gradients, which the watch fills in
  uint64_t skipped_in_a_row = 0;  ///< with this one; 0: it was applied
  const zero::StepFigures& figures;
  std::optional<uint64_t> doubted_commit = {};  ///< as in TrainingEnd
  std::vector<double> waited =
      {};  ///< seconds for others, by rank, so far; none: there is one rank
};

/// The row of a step that has ended, whole.
struct ClosedRow {
  const StepRow& row;
  uint64_t samples = 0;  ///< rows of the data that all steps up to this one took
  std::chrono::steady_clock::time_point begin;
  std::chrono::steady_clock::time_point end;
};

struct TrainingEnd {
  uint64_t step = 0;             ///< the last one that was done
  bool begun = false;            ///< the first commit of a new run was made
  std::optional<Error> failure;  ///< none: it ends normally or on request
  /// The step of the newest commit, if no loss that its weights gave was finite.
  std::optional<uint64_t> doubted_commit;
};

class StepObserver {
 public:
  StepObserver() = default;
  virtual ~StepObserver() = default;
  StepObserver(const StepObserver&) = delete;
  StepObserver& operator=(const StepObserver&) = delete;

  /// The training now does `what` ("reads the data of") with a step.
  virtual void Doing(std::string_view /*what*/, uint64_t /*step*/) {}
  /// A step was decided on. What an observer adds to its numbers, those after it see. A failure
  /// ends the training.
  virtual Status AfterStep(DoneStep& /*step*/) { return {}; }
  /// A step has ended. After a failure this may be called again with the same row.
  virtual Status AfterRow(const ClosedRow& /*closed*/) { return {}; }

  /// The newest commit is about to be replaced or taken back. Returns once the observer no longer
  /// uses it.
  virtual void ReleaseCommit() {}
  /// A commit relies on what was written of the steps before it: makes that durable. Called on the
  /// thread that makes the commit, which is made even after a failure.
  virtual Status SyncRows() { return {}; }
  /// A commit was made. A failure ends the training.
  virtual Status AfterCommit() { return {}; }
  /// A commit of the weights after a step was refused because of their values.
  virtual void CommitRefused(uint64_t /*step*/, const std::string& /*why*/) {}
  /// The newest commit, whose weights gave a finite loss, is to be kept as a snapshot.
  virtual void KeepCommit() {}

  /// The training fails, and has not waited for anything since. `doubted_commit`: see TrainingEnd.
  virtual void Failing(const Error& /*why*/, const std::optional<uint64_t>& /*doubted_commit*/) {}
  /// The last call, unless the training fails and leaves nothing.
  virtual void AtEnd(const TrainingEnd& /*end*/) {}
};

}  // namespace penstock::train
