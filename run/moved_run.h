// Whether a run is where it was (docs/run_format.md): a moved run is the same one; a copied run
// shares its state with the original, whose state is not to be written or removed.
//
// Threads: any.
#pragma once

#include <optional>
#include <string>

#include "base/folder.h"
#include "run/run_info.h"

namespace penstock::train {

/// Returns where the run is of which the one in `run` is a copy: the run that the file beside a
/// state names (run/state_owner.h), or one that is still at the place that `info`, its run.json,
/// names. None if it is no copy. If that is unknown, it counts as a copy, which loses nothing.
std::optional<std::string> OriginalOf(const Folder& run, const RunInfo& info);
bool IsCopy(const Folder& run, const RunInfo& info);
/// What a copy without a state of its own tells its user.
std::string CopyNotice(const Folder& run, const std::string& original);

/// Returns where a run that is no copy was last opened for writing, if that was not where it is
/// now: it was moved, or it is a copy of a run that was moved, which cannot be told. A snapshot in
/// its run is where that is.
std::optional<std::string> LastPlaceElsewhere(const Folder& run, const RunInfo& info);

/// Removes from `info`, the run.json of a copy, all that belongs to the original except the state
/// from which it resumes. `run_uuid`: a new one. `info` keeps the original's place until the copy
/// has its own state, so that the next start still knows it as a copy.
void BecomeOwn(const Folder& run, const std::string& run_uuid, RunInfo* info);

}  // namespace penstock::train
