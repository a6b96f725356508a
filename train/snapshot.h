// Snapshots: commits that are kept under a name, in RUN/snapshots/NAME.
//
// That folder is one of a run, so that inspect, export, compare and clean take it: run.json,
// metrics.jsonl up to the commit, and the state beside the run's own
// ("penstock-UUID.snapshot-NAME.state"), or in the folder where the run's own is in RUN. Until all
// of it is there the folder is called ".NAME.unfinished"; its run.json names the files of the state
// before they are made, so that whatever ends the copy, they are found.
//
// A run that is training is asked for its snapshots (train/snapshot_request.h) and takes them
// itself (train/snapshot_service.h).
//
// Threads: one at a time for a name.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "offload/state_reader.h"
#include "train/cli.h"
#include "train/run_folder.h"

namespace penstock::train {

/// RUN/snapshots, and a snapshot's folder in it.
std::string SnapshotsFolder(const std::string& run);
std::string SnapshotFolder(const std::string& run, const std::string& name);

/// Letters, digits, '.', '_' and '-', not beginning with '.', at most 64.
Status CheckSnapshotName(const std::string& name);

/// Names of the snapshots that are there, sorted.
std::vector<std::string> Snapshots(const std::string& run);

/// The run whose snapshot lies in `folder`; none where it is no snapshot's.
std::optional<std::string> RunOfSnapshot(const std::string& folder);

/// Folders of snapshots that are being made, or whose making was cut off.
std::vector<std::string> UnfinishedSnapshots(const std::string& run);
/// The files of a snapshot's state that are there while its folder is an unfinished one.
Result<StateFiles> FilesOfUnfinished(const std::string& folder);
/// Removes what killed processes left of snapshots; a notice names what stays. The caller has the
/// run's lock.
void RemoveUnfinishedSnapshots(const std::string& run);

/// Keeps the commit of `state`, which is that of `info`'s run, whose lock this process has.
/// Complete and durable when it returns; after an error nothing is left.
Status TakeSnapshot(const std::string& run, const RunInfo& info, const offload::StateReader& state,
                    const std::string& name, const std::function<bool()>& stop_requested);

/// `penstock snapshot` and `penstock snapshots`: what to say on stdout.
Result<std::string> RunSnapshot(const SnapshotCommand& command);
Result<std::string> RunSnapshots(const SnapshotsCommand& command);

}  // namespace penstock::train
