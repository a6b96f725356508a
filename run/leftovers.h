// States that run.json names as leftovers. They hold no commit of the run and are removed, unless
// the program was killed before it could write down that one of them does.
//
// Threads: one at a time.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/folder.h"
#include "base/notify.h"
#include "base/result.h"
#include "run/run_info.h"
#include "run/state_files.h"

namespace penstock::train {

/// Removes a state's files, and the file that assigns it to one of these runs. Returns false if one
/// stays: it is in use, or does not belong to the state, or its drive is missing; `notify` gets the
/// reason.
bool RemoveState(const StateFiles& state, const std::vector<std::string>& runs,
                 const Notify& notify);

/// Returns the files of these states that lie in `run` itself.
std::vector<StateFiles> FilesWithin(const std::vector<StateFiles>& states, const Folder& run);

/// Has `info`, which replaces the run.json `before` of the run in `run`, name as leftovers what
/// that does, and the state before its own; of a copy (run/moved_run.h), what of that lies in
/// `run`.
void TakeLeftovers(const RunInfo& before, const Folder& run, bool is_copy, RunInfo* info);

/// Removes the leftovers of `info` with `remove`, which returns whether nothing of one is left.
/// What has the UUID of its state is that state, even if it is named as a leftover.
void RemoveLeftovers(const std::function<bool(const StateFiles& left)>& remove, RunInfo* info);

/// If `info` names no state with the newest commit, but one of its leftovers holds a commit whose
/// program was killed before it noted that, names that state in `info`. Errors: kUnavailable while
/// a state is in use; kCorruption if it cannot be read.
Status TakeUnnamedCommit(RunInfo* info);

/// ReadRunInfo and TakeUnnamedCommit, for those that only read. While a program has the state open,
/// its first commit counts when that program has named it.
Result<RunInfo> ReadCommittedInfo(const Folder& run);
Result<RunInfo> ReadCommittedInfo(const std::string& path);

}  // namespace penstock::train
