// A run that is a copy of another one's newest commit, in any folder: what a snapshot is that is
// taken to a path.
//
// Threads: one at a time for a path.
#pragma once

#include <optional>
#include <string>

#include "base/folder.h"
#include "base/notify.h"
#include "base/result.h"
#include "offload/whole_state.h"
#include "run/run_info.h"

namespace penstock::train {

/// Copies the commit of `state`, the state of the run in `run` that `info` is of, into a folder at
/// `path`, which does not exist and is made: a run of its own, with the rows up to the commit, and
/// all of its files in it. It is complete
/// and durable when the function returns; after an error nothing is left. Until then the folder is
/// ".NAME.unfinished" beside `path`; one that a killed process left is removed. Returns the path,
/// absolute and without links. Errors: kInvalidArgument if something is there; kUnavailable while
/// another process copies to it; of copying.
Result<std::string> CopyRun(const Folder& run, const RunInfo& info,
                            const offload::WholeState& state, const std::string& path,
                            const Notify& notify);

/// What a process that was killed left of a copy to a path.
struct LeftCopy {
  Folder around;
  Folder folder;
  StateFiles state;  ///< its existing files
};
/// Finds it; nothing if it is not there. Errors: kInvalidArgument if something else has its name;
/// of looking.
Result<std::optional<LeftCopy>> FindLeftCopy(const std::string& path);
/// Removes it, if it is there. Errors: those of FindLeftCopy; kUnavailable while a process copies
/// to that path; of removing.
Status RemoveLeftCopy(const std::string& path);

}  // namespace penstock::train
