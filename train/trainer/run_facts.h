// What is said of a run in run.json and in its commits, from its job; and what a run that goes on
// has from them.
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

/// Returns `options` with what the run was started with.
TrainOptions CompleteFrom(const RunInfo& info, TrainOptions options);

/// Returns the run.json of the run in `run` without changes and skips. Seed and order of `options`
/// are given.
RunInfo InfoOf(const TrainOptions& options, const TrainJob& job, const std::string& run,
               const StateFiles& state, const std::string& run_uuid);

/// Returns what a commit keeps so that a later program recognises the run it belongs to.
std::string IdentityOf(const TrainOptions& options, const TrainJob& job, std::string arithmetic);

/// Returns the samples that the steps up to the commit took, of all ranks. Errors: kCorruption if
/// no steps take so many.
Result<uint64_t> ConsumedSamples(const ResumePoint& from, const TrainJob& job);
/// Whether a batch that was changed, in the commit or by one of the keys of `changed`, lets them no
/// more follow from the number of a step.
template <typename Change>
bool ChangesBatch(const ResumePoint& from, const std::vector<Change>& changes) {
  return from.consumed_samples.has_value() ||
         std::ranges::any_of(changes, [](const Change& change) { return IsOfBatch(change.key); });
}
/// Returns the last step of the epoch that a run which goes on from the commit is in.
uint64_t LastStepOfEpoch(const ResumePoint& from, const TrainJob& job, uint64_t consumed);

}  // namespace penstock::train
