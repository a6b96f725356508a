// Whether the run.json of a run of `penstock train` agrees with what was committed.
//
// A commit knows its training (run/identity/run_identity.h), so model, data order, seed and
// sequence length in run.json must be those of the commit, and the state must be the run's.
//
// Threads: one at a time.
#pragma once

#include <memory>

#include "base/result.h"
#include "offload/whole_state.h"
#include "run/run_folder.h"
#include "train/models/registry.h"
#include "zero/states/committed_state.h"

namespace penstock::train {

/// Checks that `info` agrees with the commit in use of the state, which it names. Its model is one
/// of `families`. Errors: kCorruption, naming what differs and both values.
Status CheckInfo(const RunInfo& info, const zero::CommittedState& state,
                 ModelFamilies families = AllModelFamilies());
Status CheckInfo(const RunInfo& info, const offload::WholeState& state);

/// OpenFiles of the state that `info` names, and CheckInfo. Logs the notice of the commit.
Result<std::unique_ptr<zero::CommittedState>> OpenCommit(const RunInfo& info,
                                                         const std::string& run);

}  // namespace penstock::train
