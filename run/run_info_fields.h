// The fields that run.json has in all versions of penstock train.
//
// Threads: any.
#pragma once

#include "base/folder.h"
#include "base/result.h"
#include "run/json_fields.h"
#include "run/run_info.h"

namespace penstock::train {

/// Reads rows_from, made_files, copying, automatic, changes and skip_steps into `info`, as far as
/// they are there. Errors: kCorruption.
Status ReadNotes(const JsonFields& fields, const Folder& run, RunInfo* info);
/// Reads model, data, seed, sequence_length and device. Errors: kCorruption.
Result<RunTraining> TrainingFrom(const JsonFields& fields);

}  // namespace penstock::train
