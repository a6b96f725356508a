// How the ranks of a run begin together: rank 0 opens RUN and decides, all compare the values that
// must agree, and each completes its part.
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

/// The notice of the first Ctrl-C.
inline constexpr const char* kInterruptNotice =
    "penstock: finishing this step and committing; interrupt again to quit at once";

/// The notice while nothing has changed yet.
inline constexpr const char* kOpeningInterruptNotice =
    "penstock: stopping; interrupt again to quit at once";

/// What rank 0 decides for all.
struct Beginning {
  std::string run;  ///< the path of RUN
  offload::Uuid state{};
  uint64_t session_number = 0;
  bool is_copy = false;  ///< resumes a copy of a run that still exists (run/moved_run.h)
};

/// Creates RUN on rank 0, or opens it to resume, and tells all ranks. Sets `folder` on rank 0.
Result<Beginning> BeginTogether(const TrainOptions& given, Ranks& ranks,
                                std::optional<RunFolder>& folder);

/// Compares the values that must agree on all ranks before anything is made; from then on the
/// configured timeouts apply. `from`: the commit from which they resume.
Status CheckAllAlike(const TrainOptions& options, const TrainJob& job, const ResumePoint* from,
                     Ranks& ranks);

/// The last part, after the machine is made: rows, on rank 0, and the text of commits.
Status Complete(PreparedRun& run, const std::function<Result<MetricsWriter>(RunFolder&)>& rows);

}  // namespace penstock::train
