// How the ranks of a run begin together: rank 0 opens RUN and decides, all compare what they need
// alike, and each completes what it has made.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/result.h"
#include "offload/uuid.h"
#include "run/resume.h"
#include "run/run_folder.h"
#include "train/trainer/prepared_run.h"
#include "train/trainer/ranks.h"
#include "train/trainer/trainer.h"
#include "train/trainer/trainer_job.h"

namespace penstock::train {

/// What the first Ctrl-C says.
inline constexpr const char* kInterruptNotice =
    "penstock: finishing this step and committing; interrupt again to quit at once";

/// What it says while nothing was changed yet.
inline constexpr const char* kOpeningInterruptNotice =
    "penstock: stopping; interrupt again to quit at once";

/// What rank 0 decides for all.
struct Beginning {
  std::string run;  ///< the path of RUN
  offload::Uuid state{};
  uint64_t session_number = 0;
  bool is_copy = false;  ///< of a run that is still there, which is resumed (run/moved_run.h)
};

/// Has rank 0 create RUN, or open it to resume, and tells all. On rank 0 `folder` gets it.
Result<Beginning> BeginTogether(const TrainOptions& given, Ranks& ranks,
                                std::optional<RunFolder>& folder);

/// Compares what all ranks need alike before anything is made; from then on they wait for each
/// other as long as it says. `from`: the commit that they continue from.
Status CheckAllAlike(const TrainOptions& options, const TrainJob& job, const ResumePoint* from,
                     Ranks& ranks);

/// What is left to do when the machine is made: rows, on rank 0, and what commits keep.
Status Complete(PreparedRun& run, const std::function<Result<MetricsWriter>(RunFolder&)>& rows);

}  // namespace penstock::train
