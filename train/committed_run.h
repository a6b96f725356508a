// Opens the commit that a run.json names, and holds the one against the other: a commit knows the
// training it is of (train/run_identity.h), so what run.json says of model, data order, seed and
// sequence length must be what it was committed with, and the state must be the run's.
//
// Threads: one at a time.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "offload/state_reader.h"
#include "train/run_folder.h"
#include "zero/engine.h"

namespace penstock::train {

/// What the training loop keeps in a commit.
struct CommitTexts {
  std::string identity;
  std::string row;  ///< of the committed step, as in metrics.jsonl; empty for step 0
};
/// Of the commit of a step; `path`: for messages. What is returned can be given to all functions of
/// train/run_identity.h. Errors: kCorruption.
Result<CommitTexts> ReadCommitTexts(const std::string& json, uint64_t step,
                                    const std::string& path);

/// Whether `info` is what `state`, which it names, was committed with. Errors: kCorruption, naming
/// what differs and both values.
Status CheckInfo(const RunInfo& info, const zero::CommittedState& state);

/// CommittedState::Open of the state that `info` names, and CheckInfo. What is to be told of the
/// commit is logged.
Result<std::unique_ptr<zero::CommittedState>> OpenCommit(const RunInfo& info);

/// The same for a StateReader, which copies read.
Result<std::unique_ptr<offload::StateReader>> OpenCommitToCopy(const RunInfo& info,
                                                               offload::StateLock lock);

}  // namespace penstock::train
