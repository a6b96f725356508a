// The facts about a run in run.json and in its commits, from its job; and the values that a resumed
// run takes from them.
//
// Threads: any.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "run/identity/run_changes.h"
#include "run/resume.h"
#include "run/run_folder.h"
#include "train/trainer/trainer.h"
#include "train/trainer/trainer_job.h"

namespace penstock::train {

/// Returns `options` completed with the values that the run was started with.
TrainOptions CompleteFrom(const RunInfo& info, TrainOptions options);

/// Returns the run.json of the run in `run` without changes and skips. Seed and order of `options`
/// are given.
RunInfo InfoOf(const TrainOptions& options, const TrainJob& job, const std::string& run,
               const StateFiles& state, const std::string& run_uuid);

/// Returns the identity that a commit keeps, by which a later program recognises its run.
std::string IdentityOf(const TrainOptions& options, const TrainJob& job, std::string arithmetic);

/// Returns the samples that the steps up to the commit took, of all ranks. Errors: kCorruption if
/// that number is impossible.
Result<uint64_t> ConsumedSamples(const ResumePoint& from, const TrainJob& job);
/// Whether the number of samples no longer follows from the step, because the batch was changed, in
/// the commit or by one of the keys of `changed`.
template <typename Change>
bool ChangesBatch(const ResumePoint& from, const std::vector<Change>& changes) {
  return from.consumed_samples.has_value() ||
         std::ranges::any_of(changes, [](const Change& change) { return IsOfBatch(change.key); });
}
/// Returns the last step of the epoch in which the run resumes.
uint64_t LastStepOfEpoch(const ResumePoint& from, const TrainJob& job, uint64_t consumed);

}  // namespace penstock::train
