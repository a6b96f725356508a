// Copies of a run's newest commit, each in a folder of its own: snapshots in RUN (run/snapshot.h),
// and runs at a path, which are what a snapshot is that is taken there.
//
// Until a copy is complete, its folder NAME is called ".NAME.unfinished", and its run.json names
// the files of its state in `leftovers` before they are made, so that they are found however it
// ends.
//
// Threads: one at a time for a place.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "base/folder.h"
#include "base/notify.h"
#include "base/result.h"
#include "offload/whole_state.h"
#include "run/run_info.h"

namespace penstock::train {

inline constexpr const char* kUnfinished = ".unfinished";
/// ".NAME.unfinished"
std::string UnfinishedName(const std::string& name);

/// What is copied: the newest commit of `state`, the state of the run in `run` that `info` is of.
struct CommitOfRun {
  const Folder& run;
  const RunInfo& info;
  const offload::WholeState& state;
};

/// Where a copy is made.
struct CopyPlace {
  const Folder& around;
  std::string name;
  /// Fails for a folder of the unfinished name that is not an unfinished copy to this place.
  std::function<Status(const Folder& unfinished)> check;
  bool locks = false;  ///< a lock of its own keeps other processes away
};

/// Makes a copy, whose run.json is `own` with the state that `files` returns for its folder; what a
/// killed process left there is removed. The copy is complete and durable when the function
/// returns; after an error nothing is left. Errors: of removing what was left; of copying.
Status MakeCopy(const CommitOfRun& commit, const CopyPlace& place, RunInfo own,
                const std::function<Result<StateFiles>(const Folder& unfinished)>& files,
                const std::function<bool()>& stop_requested, const Notify& notify);
/// Removes an unfinished copy, if it is there. Stops at the first thing that is not the copy's, and
/// leaves the rest. Errors: of `check`; kUnavailable while a process makes it, or has just finished
/// it; of removing.
Status RemoveUnfinished(const CopyPlace& place);
/// The same; a failure is only told.
void RemoveUnfinishedOrSay(const CopyPlace& place, const Notify& notify);
/// Returns the existing files of the state of an unfinished copy.
Result<StateFiles> FilesOfUnfinished(const Folder& folder);

/// Copies the commit to `path`, absolute and without links, where nothing is: a run of its own,
/// with the rows up to the commit, and all of its files in it. Errors: kInvalidArgument if
/// something is there; kUnavailable while another process copies to it; of copying.
Status CopyRun(const CommitOfRun& commit, const std::string& path, const Notify& notify);

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
