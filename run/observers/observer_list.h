// Several observers as one, and the order in which they are called.
//
// Turn fixes the order, not the order of addition. If an observer fails, those after it are not
// called.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "run/observers/step_observer.h"

namespace penstock::train {

/// The turns of the observers, first to last.
enum class Turn {
  /// Says in RUN that a commit is in doubt: before anything that takes long, because a killed
  /// process cannot note it.
  kDoubt,
  /// Tells other ranks: of a failure before this rank waits for anything, or they would wait as
  /// well; after kDoubt, because they may end this process.
  kRanks,
  /// Finds the first non-finite value, which the watch reports.
  kSearch,
  kWatch,
  kTrace,
  /// Writes the row, before progress shows the step.
  kRows,
  kProgress,
  /// Checks that RUN still exists, with its rows: no snapshot is taken of a commit in a folder that
  /// is gone. Keeps RUN after everything that may end the training with its first step.
  kFolder,
  kSnapshots,
};

class ObserverList final : public StepObserver {
 public:
  /// `observer` outlives the list.
  void Add(Turn turn, StepObserver& observer);

  void Doing(std::string_view what, uint64_t step) override;
  Status AfterStep(DoneStep& step) override;
  Status AfterRow(const ClosedRow& closed) override;
  void ReleaseCommit() override;
  Status SyncRows() override;
  Status AfterCommit() override;
  void CommitRefused(uint64_t step, const std::string& why) override;
  void KeepCommit() override;
  void Failing(const Error& why, const std::optional<uint64_t>& doubted_commit) override;
  void AtEnd(const TrainingEnd& end) override;

 private:
  template <typename Call>
  void Each(Call call);
  template <typename Call>
  Status UntilOneFails(Call call);

  std::vector<std::pair<Turn, StepObserver*>> observers_;  ///< by turn
};

}  // namespace penstock::train
