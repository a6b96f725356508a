// What is said of a run in run.json and in its commits, from its job; and what a run that goes on
// has from them.
//
// Threads: any.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "train/loop/trainer.h"
#include "train/loop/trainer_job.h"
#include "train/run/resume.h"
#include "train/run/run_folder.h"

namespace penstock::train {

/// Returns `options` with what the run was started with.
TrainOptions CompleteFrom(const RunInfo& info, TrainOptions options);

/// Returns the run.json of a run without changes and skips. Seed and order of `options` are given.
RunInfo InfoOf(const TrainOptions& options, const TrainJob& job, const StateFiles& state,
               const std::string& run_uuid);

/// Returns what a commit keeps so that a later program recognises the run it belongs to.
std::string IdentityOf(const TrainOptions& options, const TrainJob& job, std::string arithmetic);

/// Returns the samples that the steps up to the commit took, of all ranks. Errors: kCorruption if
/// no steps take so many.
Result<uint64_t> ConsumedSamples(const ResumePoint& from, const TrainJob& job);

}  // namespace penstock::train
