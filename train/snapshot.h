// Snapshots: commits that are kept under a name, in RUN/snapshots/NAME.
//
// That folder is one of a run, so that inspect, export, compare and clean take it: run.json,
// metrics.jsonl up to the commit, and the state beside the run's own
// ("penstock-UUID.snapshot-NAME.state"), or in the folder where the run's own is in RUN. Until all
// of it is there the folder is called ".NAME.unfinished"; its run.json names the files of the state
// before they are made, so that whatever ends the copy, they are found. RUN/snapshots is the user's
// as well: what there is the run's is known by the run's UUID in it (RunInfo), never by its name
// alone.
//
// A run that is training is asked for its snapshots (train/snapshot_request.h) and takes them
// itself (train/snapshot_service.h).
//
// Threads: one at a time for a name.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/folder.h"
#include "base/result.h"
#include "offload/state_reader.h"
#include "train/cli.h"
#include "train/run_folder.h"

namespace penstock::train {

/// RUN/snapshots. Errors: those of Folder::OpenFile; kNotFound where there is none.
Result<Folder> OpenSnapshotsFolder(const Folder& run);
/// Creates it where there is none.
Result<Folder> MakeSnapshotsFolder(const Folder& run);
/// A snapshot's folder in it.
Result<Folder> OpenSnapshot(const Folder& run, const std::string& name);

/// Letters, digits, '.', '_' and '-', not beginning with '.', at most 64.
Status CheckSnapshotName(const std::string& name);
/// The same for a snapshot that is to be made: it must not look like a file that we make beside
/// snapshots. (Snapshots of such names that earlier versions made can be returned to.)
Status CheckNewSnapshotName(const std::string& name);
/// NAME of ".NAME<suffix>", which belongs to a snapshot that is not there yet.
std::optional<std::string> HiddenSnapshotName(const std::string& file, std::string_view suffix);

/// Names of the snapshots that are there, sorted.
std::vector<std::string> Snapshots(const Folder& run);

/// The path of the run whose snapshot lies in `folder`; none where it is no snapshot's.
std::optional<std::string> RunOfSnapshot(const Folder& folder);

/// Names in RUN/snapshots of snapshots that are being made, or whose making was cut off: folders
/// that are empty or whose run.json is of the run with this UUID. No other is one, whatever it is
/// called.
std::vector<std::string> UnfinishedSnapshots(const Folder& snapshots, const std::string& run_uuid);
/// The files of a snapshot's state that are there while its folder is an unfinished one.
Result<StateFiles> FilesOfUnfinished(const Folder& folder);
/// Removes what killed processes left of the run's snapshots; a notice names what stays. The caller
/// has the run's lock.
void RemoveUnfinishedSnapshots(const Folder& run, const std::string& run_uuid);

/// Keeps the commit of `state`, which is that of `info`'s run, whose lock this process has.
/// Complete and durable when it returns; after an error nothing is left.
Status TakeSnapshot(const Folder& run, const RunInfo& info, const offload::StateReader& state,
                    const std::string& name, const std::function<bool()>& stop_requested);

/// `penstock snapshot` and `penstock snapshots`: what to say on stdout.
Result<std::string> RunSnapshot(const SnapshotCommand& command);
Result<std::string> RunSnapshots(const SnapshotsCommand& command);

}  // namespace penstock::train
