// States that run.json names as leftovers. They hold no commit of the run and are removed, unless
// the program was killed before it could write down that one of them does.
//
// Threads: one at a time.
#pragma once

#include <string>
#include <vector>

#include "base/folder.h"
#include "base/notify.h"
#include "base/result.h"
#include "run/run_info.h"
#include "run/state_files.h"

namespace penstock::train {

/// Removes a state's files, and the one that says that it is of one of these runs. False where one
/// stays: it is in use, or does not belong to the state, or its drive is not there; `notify` is
/// told why.
bool RemoveState(const StateFiles& state, const std::vector<std::string>& runs,
                 const Notify& notify);

/// Returns the files of these states that lie in `run` itself.
std::vector<StateFiles> FilesWithin(const std::vector<StateFiles>& states, const Folder& run);

/// If `info` names no state that holds the newest commit, and one of its leftovers holds a commit
/// all the same, whose program was killed before it wrote that down, has `info` name it. Errors:
/// kUnavailable while a state is in use; kCorruption for one of which that cannot be known.
Status TakeUnnamedCommit(RunInfo* info);

/// ReadRunInfo and TakeUnnamedCommit, for those that only read. While a program has the state open,
/// its first commit counts when that program has named it.
Result<RunInfo> ReadCommittedInfo(const Folder& run);
Result<RunInfo> ReadCommittedInfo(const std::string& path);

}  // namespace penstock::train
