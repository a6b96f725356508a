// The observers of `penstock train`: on rank 0 those that write and show, and on every rank those
// that act on all ranks alike.
//
// Threads: one.
#pragma once

#include <memory>
#include <optional>

#include "base/result.h"
#include "run/observers/doubt_notes.h"
#include "run/observers/kept_folder.h"
#include "run/observers/observer_list.h"
#include "run/observers/row_files.h"
#include "run/observers/run_watch.h"
#include "run/observers/snapshot_service.h"
#include "run/observers/step_spans.h"
#include "train/loop/other_ranks.h"
#include "train/loop/overflow_search.h"
#include "train/loop/progress.h"
#include "train/loop/skipped_step_search.h"
#include "train/loop/step_batch.h"
#include "train/trainer/prepared_run.h"
#include "train/trainer/ranks.h"

namespace penstock::train {

class RunObservers {
 public:
  /// All arguments outlive the object. Errors: of the run's folder.
  static Result<std::unique_ptr<RunObservers>> Make(PreparedRun& run, Ranks& ranks,
                                                    const StepBatch& batch);
  RunObservers(const RunObservers&) = delete;
  RunObservers& operator=(const RunObservers&) = delete;

  StepObserver& all() { return list_; }
  /// None: another rank takes snapshots.
  const SnapshotService* snapshots() const { return snapshots_ ? &*snapshots_ : nullptr; }

 private:
  RunObservers(PreparedRun& run, Ranks& ranks, const StepBatch& batch);
  /// Adds the observers of rank 0.
  Status AddFirst(PreparedRun& run);

  OtherRanks ranks_;
  OverflowSearch overflow_search_;
  SkippedStepSearch search_;
  KeptFolder folder_;
  std::optional<StepSpans> spans_;  ///< if there is a trace
  // On rank 0.
  std::optional<DoubtNotes> doubt_;
  std::unique_ptr<RunWatch> watch_;
  std::optional<RowFiles> rows_;
  std::optional<Progress> progress_;
  std::optional<SnapshotService> snapshots_;
  ObserverList list_;
};

}  // namespace penstock::train
