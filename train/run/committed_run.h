// Opens the commit that a run.json names, and compares the two. A commit knows its training
// (train/run/run_identity.h), so model, data order, seed and sequence length in run.json must be
// those of the commit, and the state must be the run's.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "offload/whole_state.h"
#include "train/models/registry.h"
#include "train/run/run_folder.h"
#include "zero/committed_state.h"

namespace penstock::train {

/// The key of the samples that the steps so far took. Only there if the batch grows; otherwise all
/// steps took as many.
inline constexpr const char* kConsumedSamples = "consumed_samples";

/// What the training loop keeps in a commit.
struct CommitTexts {
  std::string identity;
  std::string row;  ///< of the committed step, as in metrics.jsonl; empty for step 0
  std::optional<uint64_t> consumed_samples;
};
/// Reads it from the commit of a step; `path`: for messages. The result can be given to all
/// functions of train/run/run_identity.h. Errors: kCorruption.
Result<CommitTexts> ReadCommitTexts(const std::string& json, uint64_t step,
                                    const std::string& path);

/// Checks that `info` agrees with the commit of `state`, which it names. Its model is one of
/// `families`. Errors: kCorruption, naming what differs and both values.
Status CheckInfo(const RunInfo& info, const zero::CommittedState& state,
                 ModelFamilies families = AllModelFamilies());

/// CommittedState::Open of these files. Errors name the host of a rank whose files are not there.
Result<std::unique_ptr<zero::CommittedState>> OpenFiles(
    const StateFiles& files, offload::StateLock lock = offload::StateLock::kShared);

/// OpenFiles of the state that `info` names, and CheckInfo. Logs the notice of the commit.
Result<std::unique_ptr<zero::CommittedState>> OpenCommit(const RunInfo& info);

/// The same for a WholeState, from which copies are made; logs nothing.
Result<offload::WholeState> OpenCommitToCopy(const RunInfo& info, offload::StateLock lock,
                                             ModelFamilies families = AllModelFamilies());

}  // namespace penstock::train
