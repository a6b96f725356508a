// Snapshots: commits that are kept under a name, in RUN/snapshots/NAME.
//
// That folder is one of a run, so that inspect, export, compare and clean take it: run.json,
// metrics.jsonl up to the commit, and the state beside the run's own
// ("penstock-UUID.snapshot-NAME.state"), or in the folder if the run's own is in RUN
// (run/run_copy.h). RUN/snapshots is the user's as well: the run's own files in it are recognised
// by the run's UUID in them (RunInfo), never by name alone.
//
// A run that is training is asked for its snapshots (run/snapshot_request.h) and takes them
// itself (run/observers/snapshot_service.h).
//
// Threads: one at a time for a name.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/folder.h"
#include "base/notify.h"
#include "base/result.h"
#include "offload/whole_state.h"
#include "run/run_folder.h"

namespace penstock::train {

/// Opens RUN/snapshots. Errors: those of Folder::OpenFile; kNotFound if there is none.
Result<Folder> OpenSnapshotsFolder(const Folder& run);
/// The same, but creates the folder if there is none.
Result<Folder> MakeSnapshotsFolder(const Folder& run);
/// Opens a snapshot's folder in it.
Result<Folder> OpenSnapshot(const Folder& run, const std::string& name);

/// Letters, digits, '.', '_' and '-', not beginning with '.', at most 64.
Status CheckSnapshotName(const std::string& name);
/// The same for a snapshot that a user wants: its name must not look like those of files made
/// beside snapshots, or of automatic ones. (A run can go back to snapshots with such names, which
/// earlier versions made.)
Status CheckNewSnapshotName(const std::string& name);
/// Errors: kInvalidArgument if there is a snapshot, or anything else, of this name.
Status CheckSnapshotNotTaken(const Folder& run, const std::string& name);
/// Returns NAME of ".NAME<suffix>", which belongs to a snapshot that does not exist yet.
std::optional<std::string> HiddenSnapshotName(const std::string& file, std::string_view suffix);

/// Returns the names of the existing snapshots, sorted.
std::vector<std::string> Snapshots(const Folder& run);

/// Returns the path of the run whose snapshot lies in `folder`; none if it is not a snapshot's
/// folder.
std::optional<std::string> RunOfSnapshot(const Folder& folder);

/// Returns the names in RUN/snapshots of snapshots that are being made, or whose making was cut
/// off: folders that are empty, or whose run.json is of the run with this UUID. No other folder
/// counts.
std::vector<std::string> UnfinishedSnapshots(const Folder& snapshots, const std::string& run_uuid);
/// Removes what killed processes left of the run's snapshots; a notice names files that stay. The
/// caller has the run's lock.
void RemoveUnfinishedSnapshots(const Folder& run, const std::string& run_uuid,
                               const Notify& notify);

/// Keeps the commit of `state`, the state of `info`'s run, as a snapshot, with the files of all
/// ranks. This process has the run's lock. The snapshot is complete and durable when the function
/// returns; after an error nothing is left.
Status TakeSnapshot(const Folder& run, const RunInfo& info, const offload::WholeState& state,
                    const std::string& name, const std::function<bool()>& stop_requested,
                    const Notify& notify);

/// Removes a snapshot of the run with this UUID, with its state. The caller has the run's lock.
/// Errors: kInvalidArgument if it is not the run's; kUnavailable while somebody reads it, and then
/// it stays as it is.
Status RemoveSnapshot(const Folder& run, const std::string& name, const std::string& run_uuid);

}  // namespace penstock::train
