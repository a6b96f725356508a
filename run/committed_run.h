// Opens the state that a run.json names, and reads what its commits say of the run.
//
// The front end checks that run.json and a commit agree on the training
// (train/weights/committed_model.h).
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "offload/whole_state.h"
#include "run/run_folder.h"
#include "zero/states/committed_state.h"

namespace penstock::train {

/// The key of the samples that the steps so far took. Present only if the batch grows; otherwise
/// all steps took the same number.
inline constexpr const char* kConsumedSamples = "consumed_samples";

/// What the training loop keeps in a commit.
struct CommitTexts {
  std::string identity;
  std::string row;  ///< of the committed step, as in metrics.jsonl; empty for step 0
  std::optional<uint64_t> consumed_samples;
};
/// Reads it from the commit of a step; `path`: for messages. The result can be given to all
/// functions of run/identity/run_identity.h. Errors: kCorruption.
Result<CommitTexts> ReadCommitTexts(const std::string& json, uint64_t step,
                                    const std::string& path);

/// Checks that the state with this UUID is the one that `info` names. Errors: kCorruption.
Status CheckStateOf(const RunInfo& info, const std::string& uuid);

/// Checks that the files with the newest commit of the run at `run` are there. Errors: kNotFound,
/// which says what a drive that is not mounted has to do with it.
Status CheckIsThere(const StateFiles& files, const std::string& run);

/// CommittedState::Open of these files. Errors name the host of a rank whose files are not there.
Result<std::unique_ptr<zero::CommittedState>> OpenFiles(
    const StateFiles& files, offload::StateLock lock = offload::StateLock::kShared);

/// Opens the state that `info` names, to copy its newest commit. Errors: as OpenFiles, and of
/// CheckStateOf.
Result<offload::WholeState> OpenCommitToCopy(const RunInfo& info, offload::StateLock lock);

}  // namespace penstock::train
