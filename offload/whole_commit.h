// Chooses the commit of a state from which a run resumes: the newest that is whole.
//
// A commit is whole if every part that it names reads back with its checksum. That takes one read
// of what it names, no longer than the reads of a step with all states on the drives. No cheaper
// check suffices, because a drive may lose a write long after it was acknowledged. The previous
// commit stays whole until the first update after the newest overwrites its slots.
//
// Plain decisions, without files. Threads: one at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "offload/checksum.h"
#include "offload/commit_agreement.h"
#include "offload/state_check.h"

namespace penstock::offload {

/// The only commit that may be used, where a caller keeps other parts of that step itself.
struct WantedCommit {
  uint64_t step = 0;
  std::string path;    ///< names the state in messages
  std::string notice;  ///< what was wrong when the state was opened; empty: nothing
};

struct CommitChoice {
  std::vector<CommitName> commits;  ///< commits that all ranks hold, the newest first; at least one
  /// Makes a commit the one that is read.
  std::function<Status(const CommitName& name)> use;
  /// Returns a line for each damaged part of the commit in use, on all ranks.
  std::function<Result<std::vector<std::string>>()> damages;
  /// The step of a commit after which a run saw a loss that was not finite: it counts only if no
  /// other one is whole.
  std::optional<uint64_t> doubted;
  /// It has to be the newest that is whole, or the one before one that is doubted.
  std::optional<WantedCommit> wanted = {};
};

/// The choice that was made.
struct ChosenCommit {
  CommitName name;
  /// A line for the user on each newer commit that was left, and why; empty: there is none.
  std::string notice;
};

/// Returns the newest commit that is whole, which is then in use; a doubted one only if no other is
/// whole. Errors: kCorruption if none is, with what is wrong with each; kInvalidArgument if it is
/// not the one that is wanted, or kCorruption if damage is the reason; of `use` and `damages`.
Result<ChosenCommit> ChooseCommit(const CommitChoice& choice);

/// The same for a state that this process alone reads (offload::WholeState, zero::CommittedState).
/// Returns the notice. `progress`: of each commit that is read. `doubted`, `wanted`: see
/// CommitChoice.
template <typename State>
Result<std::string> UseWholeCommit(State& state, const CheckProgress& progress = kNoProgress,
                                   std::optional<uint64_t> doubted = {},
                                   const std::optional<WantedCommit>& wanted = {}) {
  PENSTOCK_ASSIGN(ChosenCommit chosen,
                  ChooseCommit({.commits = state.commits(),
                                .use = [&state](const CommitName& name) { return state.Use(name); },
                                .damages = [&] { return state.DamagedTiles(progress); },
                                .doubted = doubted,
                                .wanted = wanted}));
  return std::move(chosen.notice);
}

/// Whether an operation failed because of what was read.
inline bool IsDamage(const Status& status) { return !status.ok() && IsReadDamage(status.error()); }

/// Whether an operation on the newest commit may succeed with another one: it failed because of
/// what was read, and there is another.
inline bool MayUseOther(const Status& status, const std::vector<CommitName>& commits) {
  return IsDamage(status) && commits.size() > 1;
}

}  // namespace penstock::offload
