// Snapshots that a run takes automatically (penstock.snapshot_every_steps).
//
// They are snapshots like all others (run/snapshot.h), with names "auto-STEP", which a user cannot
// give to a new one. The field "automatic" of their run.json numbers them. That field identifies
// them, so that an older snapshot of a user with such a name stays. The oldest is the one with the
// lowest number, not the lowest step: a run that resumes from a snapshot reaches the steps after it
// again.
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
/// of TakeSnapshot; of the removal, after which the new one exists.
Status TakeAutomaticSnapshot(const Folder& run, const RunInfo& info,
                             const offload::WholeState& state, uint64_t keep,
                             const std::function<bool()>& stop_requested, const Notify& notify);

}  // namespace penstock::train
