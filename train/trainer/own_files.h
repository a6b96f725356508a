// How ranks resume a run whose state lies on drives of their nodes: each rank sees its own files,
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
/// Returns whether each rank sees its own files of a state, but not every rank all of them: then
/// they can resume in them. `files`: none if they are unknown. Errors: a file that no rank sees
/// while others exist, or that only other ranks see than the one that needs it; the message names
/// file, rank and host.
Result<bool> SeeOwnFilesOnly(const Folder& run, const StateFiles& files, Ranks& ranks);

/// Opens this rank's share of the commits of `run` that all ranks hold. Errors: as of
/// OpenResumePoint, from the lowest rank that has one.
Result<ResumePoint> OpenOwnShare(const Folder& run, const StateFiles& files, Ranks& ranks);

}  // namespace penstock::train
