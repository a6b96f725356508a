// Snapshots that a run takes of itself (penstock.snapshot_every_steps).
//
// They are snapshots as all others (run/snapshot.h), under the names "auto-STEP", which
// nobody else may give to a new one. Their run.json says which one of the run's automatic snapshots
// they are ("automatic"): by that they are recognised, so that a snapshot that a user has under
// such a name stays, and the oldest is the one with the lowest number, whatever its step: a run
// that went back reaches its steps again.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/folder.h"
#include "base/notify.h"
#include "base/result.h"
#include "offload/whole_state.h"
#include "run/run_folder.h"

namespace penstock::train {

/// Returns "auto-120" for the commit of step 120.
std::string AutomaticSnapshotName(uint64_t step);
/// Whether a name is of that form.
bool IsAutomaticSnapshotName(const std::string& name);

/// Keeps the commit of `state`, the state of `info`'s run, as TakeSnapshot does; then removes the
/// run's oldest automatic snapshots beyond `keep` (1 or more). One of the same step is replaced;
/// one that is being read stays until the next time. This process has the run's lock. Errors: those
/// of TakeSnapshot; of the removal, and then the new one is there.
Status TakeAutomaticSnapshot(const Folder& run, const RunInfo& info,
                             const offload::WholeState& state, uint64_t keep,
                             const std::function<bool()>& stop_requested, const Notify& notify);

}  // namespace penstock::train
