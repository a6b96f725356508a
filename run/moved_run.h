// Whether a run is where it was (docs/run_format.md): a moved run is the same one; a copied run
// shares its state with the original, whose state is not to be written or removed.
//
// Threads: any.
#pragma once

#include "base/folder.h"
#include "run/run_info.h"

namespace penstock::train {

/// Whether the run in `run` is a copy of one that is still at the place that `info`, its run.json,
/// names. If that is unknown, it counts as a copy, which loses nothing.
bool IsCopy(const Folder& run, const RunInfo& info);

/// Removes from `info`, the run.json of a copy, all that belongs to the original except the state
/// from which it resumes. `run_uuid`: a new one. `info` keeps the original's place until the copy
/// has its own state, so that the next start still knows it as a copy.
void BecomeOwn(const Folder& run, const std::string& run_uuid, RunInfo* info);

}  // namespace penstock::train
