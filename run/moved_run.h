// Whether a run is where it was (docs/run_format.md): a moved run is the same one; a copied run
// shares its state with the original, whose state is not to be written or removed.
//
// Threads: any.
#pragma once

#include "base/folder.h"
#include "run/run_info.h"

namespace penstock::train {

/// Whether the run in `run` is a copy of one that is still at the place that `info`, its run.json,
/// names. Where that cannot be seen it counts as one, which loses nothing.
bool IsCopy(const Folder& run, const RunInfo& info);

/// Has the run.json of a copy, in `info`, name nothing that is the original's but the state from
/// which it resumes. `run_uuid`: a new one. It keeps the original's place until it has a state of
/// its own, by which the next start knows that it is a copy still.
void BecomeOwn(const Folder& run, const std::string& run_uuid, RunInfo* info);

}  // namespace penstock::train
