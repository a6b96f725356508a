// How ranks continue a run whose state lies on drives of their nodes: each rank sees its own files,
// and not those of the others.
//
// Threads: one at a time.
#pragma once

#include <optional>

#include "base/result.h"
#include "run/resume.h"
#include "train/trainer/ranks.h"

namespace penstock::train {

// Collective: every rank calls these.
/// Returns whether each rank sees its own files of a state, and not every rank all of them: then
/// they can continue in them. `files`: none where they are not known. Errors: a file that nobody
/// sees while others are there, or that is seen by other ranks than the one that needs it; the
/// message names file, rank and host.
Result<bool> SeeOwnFilesOnly(const Folder& run, const StateFiles& files, Ranks& ranks);

/// Opens this rank's share of the commits of `run` that all ranks hold. Errors: as
/// those of OpenResumePoint, of the lowest rank that has one.
Result<ResumePoint> OpenOwnShare(const Folder& run, const StateFiles& files, Ranks& ranks);

}  // namespace penstock::train
