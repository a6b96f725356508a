// The commits of a training: begun between two steps, made beside the next step's forward and
// backward, and finished before its update.
//
// A commit counts once the observers have seen it (StepObserver::AfterCommit). The destructor waits
// for a commit in progress. Threads: one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"
#include "config/config.h"
#include "run/observers/step_observer.h"
#include "train/loop/commit_schedule.h"
#include "train/loop/rank_notes.h"
#include "zero/session/session.h"

namespace penstock::train {

class LoopCommits {
 public:
  /// All arguments outlive the object.
  LoopCommits(zero::Session& session, RankNotes& notes, StepObserver& observers,
              const config::Config& config);
  ~LoopCommits();
  LoopCommits(const LoopCommits&) = delete;
  LoopCommits& operator=(const LoopCommits&) = delete;

  /// See CommitSchedule.
  void BeginSteps() { schedule_.Begin(std::chrono::steady_clock::now()); }
  void StepDone(const StepRow& row) { schedule_.StepDone(row); }
  /// Whether to begin one after the finished step, which is not the last.
  bool Due() const;
  /// Keeps the newest commit as a snapshot, if that is due and a loss after it was finite. All
  /// ranks decide alike; rank 0 copies.
  void KeepIfConfirmed();

  /// Exchanges the notes of the ranks between two steps.
  zero::StepNote Note() const { return notes_.Mine(TimeIsUp()); }
  Status ExchangeNotes() { return notes_.Exchange(TimeIsUp()); }

  /// Begins a commit that keeps `text`. Training continues beside it until the next update, which
  /// needs Finish.
  Status Begin(std::string text);
  /// Waits for the commit that was begun, if one was. Errors: of the engine.
  Status Await();
  /// The same, and calls the observers. Errors: of the engine and the observers; if the commit is
  /// made but the rows before it could not be made durable, that of the rows.
  Status Finish();
  /// With several ranks: waits until rank 0 has copied a commit, so that no rank waits for its vote
  /// meanwhile and considers it stuck.
  Status AwaitCopy();

 private:
  bool TimeIsUp() const { return schedule_.TimeIsUp(std::chrono::steady_clock::now()); }

  zero::Session& session_;
  RankNotes& notes_;
  StepObserver& observers_;
  CommitSchedule schedule_;
  std::optional<uint64_t> pending_;  ///< the step of a commit that was begun and not finished
  Status rows_synced_;               ///< rows before that commit; set by the thread that makes it
};

}  // namespace penstock::train
