// Several observers as one, and the order in which they are told.
//
// The order is the observers', not that in which they were added: Turn says all that bounds it.
// Where one of them fails, those after it are not told.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "run/observers/step_observer.h"

namespace penstock::train {

/// Whose turn it is, from the first to the last.
enum class Turn {
  /// Says in RUN that a commit is in doubt: before anything that takes long, because a process that
  /// is killed can say it no more.
  kDoubt,
  /// Tells other ranks: of a failure before anybody waits for something, or they would wait, too,
  /// and after kDoubt, because they may end this process.
  kRanks,
  /// Finds the first value that is not finite, which the watch reports.
  kSearch,
  kWatch,
  kTrace,
  /// Writes the row, before progress shows the step.
  kRows,
  kProgress,
  /// Looks whether RUN still exists, with its rows: no snapshot is taken of a commit in a folder
  /// that is gone. Keeps RUN after everything that may end the training with its first step.
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
