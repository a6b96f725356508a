#include "train/trainer/prepared_run.h"

#include <utility>

#include "run/snapshot.h"
#include "train/trainer/prepared_new_run.h"
#include "train/trainer/prepared_replay.h"
#include "train/trainer/prepared_resumed_run.h"
#include "train/trainer/resume_notices.h"

namespace penstock::train {
namespace {

/// Ranks exchange the command line as JSON, which must be UTF-8.
Status CheckTexts(const TrainOptions& given) {
  PENSTOCK_TRY(CheckPath(given.out, "--out"));
  return given.resume_from ? CheckSnapshotName(*given.resume_from) : Status();
}

}  // namespace

Result<std::optional<PreparedRun>> PrepareRun(const TrainOptions& given, ModelFamilies families,
                                              Ranks& ranks) {
  PENSTOCK_TRY(ranks.Agree(CheckTexts(given)));
  // What the ranks do next depends on these.
  PENSTOCK_TRY(ranks.CheckAlike({{"version", PENSTOCK_VERSION},
                                 {"--resume", given.resumes() ? "given" : "not given"},
                                 {"--resume-from", given.resume_from.value_or("nothing")},
                                 {"--change", TextOf(given.changes)},
                                 {"--skip-steps", "steps " + ToText(given.skips)},
                                 {"--init random", given.init_random ? "given" : "not given"}}));
  if (given.resumes()) return PrepareResumedRun(given, families, ranks);
  PENSTOCK_ASSIGN(PreparedRun run, given.replay ? PrepareReplay(given, families, ranks)
                                                : PrepareNewRun(given, families, ranks));
  return std::optional(std::move(run));
}

}  // namespace penstock::train
