// The loop over steps: data in, forward and backward, update, one row each, commits when they are
// due.
//
// A row is complete when the next step's forward starts, and is written then; the last row is
// written after the final commit. A commit is made beside the next step's forward and backward. A
// new run with two slots commits step 0 beside its first step, so that it can go back to its
// beginning whatever that step makes of the weights.
//
// With several ranks, each has a loop of its own, and all take the same steps and make the same
// commits: whether a rank was asked to stop, and whether rank 0 wants a commit, travels with every
// step, as do the counters from which rank 0 makes the rows.
// Threads: one.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/activity.h"
#include "base/result.h"
#include "comm/world.h"
#include "config/config.h"
#include "device/device.h"
#include "numerics/advice.h"
#include "run/csv_monitor.h"
#include "run/skipped_steps.h"
#include "run/snapshot_service.h"
#include "train/loop/data.h"
#include "train/loop/metrics.h"
#include "train/loop/metrics_summary.h"
#include "train/loop/overflow_search.h"
#include "train/loop/progress.h"
#include "train/loop/run_watch.h"
#include "train/loop/search_rule.h"
#include "train/loop/slow_rank.h"
#include "train/models/model.h"
#include "train/plan/batch_rampup.h"
#include "zero/session.h"
#include "zero/step_note.h"

namespace penstock::train {

/// What the loop works with; everything is borrowed.
struct LoopParts {
  zero::Session& session;
  Model& model;
  BatchReader& data;
  const device::Device& device;
  const ActivityMeter& meter;
  MetricsWriter* metrics = nullptr;      ///< none: another rank writes the rows
  CsvMonitor* monitor = nullptr;         ///< none: nobody writes CSV files
  Progress* progress = nullptr;          ///< none: another rank shows it
  std::function<bool()> stop_requested;  ///< asked in every step
  std::function<void()> keep_folder;     ///< called after every step and commit: RUN has results
  /// Called after every commit, before it counts: checks that RUN still exists, with its rows, and
  /// has its run.json name the state.
  std::function<Status()> hold_commit = [] { return Status(); };
  /// Called when it changes which commit is in doubt; see run/doubted_commit.h.
  std::function<void(std::optional<uint64_t> step)> note_doubt = [](std::optional<uint64_t>) {};
  RunWatch* watch = nullptr;             ///< none: another rank has it, or nobody watches
  OverflowSearch* search = nullptr;      ///< none: no step is searched
  SnapshotService* snapshots = nullptr;  ///< none: nobody can ask for any
  /// With several ranks: tells the others why this one fails, before it waits for anything more.
  std::function<void(const Error& why)> tell_failure = [](const Error&) {};
  /// With several ranks: tells all of them a note, and returns those of all, by rank.
  std::function<Result<std::vector<zero::StepNote>>(const zero::StepNote& note)> exchange_notes;
  /// With several ranks: told what this thread does now, for messages; see zero::EngineOptions.
  std::function<void(std::string_view what)> doing;
  std::vector<std::string> hosts;  ///< of the ranks, by rank
};

struct LoopOptions {
  config::Config config;
  BatchShape shape;
  ModelCost cost;
  uint64_t last_step = 0;
  uint64_t consumed_samples = 0;  ///< that the steps before took, of all ranks
  /// Whether commits say how many that is: a batch that was changed does. Growing ones always do.
  bool keeps_consumed_samples = false;
  comm::World world = {};
  Bytes library_memory = {};  ///< of the GPU, beside the device's
  std::string run_json;       ///< identifies the run; kept by every commit
  /// Keys whose values are others than before, from the first step of this loop on.
  std::vector<std::string> changed = {};
  std::vector<StepRange> skips = {};  ///< steps that are passed over; not the last one
  bool searches_every_skip = false;   ///< for a replay; see SearchRule
  bool commits_last = true;           ///< false: the loop does not end with a commit
};

/// Returns "step 7 is committed in FILES"; if the newest commit cannot be read back, says that it
/// was committed, and why, unless `failure`, to which the text is appended, says so itself.
std::string CommittedIn(uint64_t step, const zero::Session& session, const Error& failure);

class TrainLoop {
 public:
  TrainLoop(LoopParts parts, LoopOptions options);
  /// Waits for a commit that was begun, because it uses the parts.
  ~TrainLoop();
  TrainLoop(const TrainLoop&) = delete;
  TrainLoop& operator=(const TrainLoop&) = delete;

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
  /// Reads so many micro-batches, those of the next step.
  Status ReadBatch(uint64_t micro_batches);
  bool StopRequested() const { return stop_requested_ || (alone() && parts_.stop_requested()); }
  /// Says what this thread does, and with which step.
  void Doing(const char* what, uint64_t step) const;
  bool alone() const { return options_.world.size == 1; }
  /// Whether something of this process asks for a commit: the clock, or somebody who wants a
  /// snapshot.
  bool CommitWanted() const;
  bool Copying() const;
  /// Whether a commit is being copied, as all ranks know it.
  bool CopyKnown() const { return alone() ? Copying() : copying_; }
  /// Has the newest commit kept, if that is due and a loss after it was finite. All ranks decide
  /// alike; rank 0 copies.
  void KeepCommit();
  /// Returns what this rank tells the others.
  zero::StepNote Note() const;
  Bytes DevicePeak() const { return parts_.device.peak() + options_.library_memory; }
  void TakeNotes(std::vector<zero::StepNote> notes);
  /// On rank 0: names a rank for which the others wait step after step.
  void NameSlowRank();
  /// Hands the figures of a step to the watch. `loss_scale`: that it was computed with.
  Status Watch(const StepRow& row, double loss_scale);
  /// For wall_clock_breakdown: says in the row how long forward and backward took.
  void SetPhases(const zero::StepOutcome& outcome, StepRow* row) const;
  /// Finds the first value that is not finite, in the steps that SearchRule says.
  Status Search(const StepRow& row);
  /// Returns the position, in the order of the data, of row `i` of a micro-batch of this rank.
  uint64_t PositionOf(uint64_t micro_batch, uint64_t i) const;
  /// Accounts for the outcome of a step in the sums.
  void Count(const StepRow& row);
  /// Ends the open row, if there is one, at `now`, where the next one begins.
  Status CloseRow(const Reading& now);
  /// Closes the row of the step before. If it cannot be written, that step is committed; not with
  /// several ranks, of which the others have no part in the rows.
  Status EndRow();
  bool CommitDue() const;
  /// Notes the newest commit if no loss that its weights gave was finite, or that it is not in
  /// doubt any more. `loss`: of the step that is done.
  void NoteDoubt(double loss);
  /// If a run ends because of its numbers, takes back a commit that they speak against. Returns the
  /// text that reports it.
  std::string TakeBackDoubtfulCommit();
  /// Whether the newest commit, of which CheckCommit says this, may give way to the one before.
  bool MayResumeEarlier(const Status& commit) const;
  /// Returns what a failure leaves of the commits, for its message.
  std::string WhatIsCommitted(const Error& failure) const;
  /// Returns the end of a numeric failure's message: whether the commit can be resumed, or what
  /// else to do. `failed`: the step that ended the run.
  std::string HowToGoOn(uint64_t failed, const NumericEnd& end) const;
  /// Returns the loss of the last step, finished or not, if one was computed.
  std::optional<double> LastLoss() const;
  /// Returns what is known of the step that the run ends with. `loss`: of that step.
  NumericEnd HowItEnds(const std::optional<double>& loss) const;
  /// Begins a commit. Training continues beside it until the next update, which needs FinishCommit.
  Status BeginCommit();
  /// Waits for the commit that was begun, if one was, and has the watch say why it was refused.
  /// Errors: of the engine.
  Status AwaitCommit();
  /// The same, and what follows. Errors: of the engine; if the commit is made but the rows before
  /// it could not be made durable, that of the rows.
  Status FinishCommit();
  /// With several ranks: waits until rank 0 has copied a commit, so that nobody waits for its vote
  /// meanwhile and takes it for stuck.
  Status AwaitCopy();
  /// Commits the last step that was done, if it is not committed.
  Status CommitLast();
  /// Bytes are those of all ranks, as far as they have told; peaks are the largest.
  Reading Now() const;

  LoopParts parts_;
  const LoopOptions options_;
  const BatchRampup rampup_;
  uint64_t consumed_samples_;  ///< by the steps that are done
  SearchRule search_;
  /// Whether the weights may be committed: not after a step with a loss or a gradient that is not
  /// finite, until a step without one is done.
  bool sound_;
  /// Whether enough steps have passed for a commit, which waits for a step that is sound.
  bool commit_due_ = false;
  /// How far an automatic snapshot is: no commit replaces the one that is to be kept.
  enum class Keep { kNothing, kNextCommit, kNewestCommit };
  Keep keep_ = Keep::kNothing;
  bool stop_requested_ = false;        ///< of any rank, before the last step ended
  bool commit_wanted_ = false;         ///< of rank 0, the same
  bool copying_ = false;               ///< of any rank, the same
  std::vector<zero::StepNote> notes_;  ///< by rank, of the last step
  SlowRank slow_rank_;
  LoopSummary summary_;
  std::vector<int32_t> inputs_;
  std::vector<int32_t> targets_;
  bool computed_ = false;       ///< a forward and backward was
  std::optional<StepRow> row_;  ///< of the step that has not ended
  Reading row_begin_;
  Trace::Row steps_;                    ///< of the trace, where there is one
  std::optional<uint64_t> doubted_;     ///< the step of the commit that is noted
  bool begins_run_ = false;             ///< the commit of step 0 was begun here
  std::optional<uint64_t> committing_;  ///< the step of a commit that was begun and not finished
  Status rows_synced_;                  ///< before that commit; set by whoever makes it
  std::chrono::steady_clock::time_point last_commit_;
};

}  // namespace penstock::train
