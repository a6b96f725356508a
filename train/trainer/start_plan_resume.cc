// StartPlan of a run that resumes from its last commit, or from that of a snapshot.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "run/resume.h"
#include "train/plan/batch_rampup.h"
#include "train/process/interrupt.h"
#include "train/process/log.h"
#include "train/process/watched_read.h"
#include "train/trainer/own_files.h"
#include "train/trainer/start_plan.h"
#include "train/weights/committed_model.h"
#include "zero/lr_schedule.h"

namespace penstock::train {
namespace {

/// The notice of the first Ctrl-C while nothing has changed yet.
constexpr const char* kOpeningInterruptNotice =
    "penstock: stopping; interrupt again to quit at once";

/// If the schedule sets the learning rate, a change of the optimizer's has no effect.
Status CheckRate(const StartPlan& plan) {
  constexpr std::string_view kOptimizers = "optimizer.params.lr";
  const char* const decides =
      zero::KeyOfRate(plan.job.config.scheduler, plan.from->train.optimizer_steps + 1);
  const bool asked = std::ranges::any_of(plan.options.changes, [&](const RequestedChange& change) {
    return change.key == kOptimizers;
  });
  if (!asked || decides == kOptimizers) return {};
  return MakeError(ErrorCode::kInvalidArgument,
                   "--change {}: it changes nothing, because {} decides the learning rate; change "
                   "that",
                   kOptimizers, decides);
}

/// Returns the changes of the run's numbers from here on.
Result<std::vector<RunChange>> CheckResume(const StartPlan& plan) {
  const ResumePoint& from = *plan.from;
  const uint64_t step = from.train.step;
  PENSTOCK_TRY(CheckRate(plan));
  PENSTOCK_ASSIGN(std::vector<RunChange> changes,
                  AcceptChanges(from.identity, plan.Identity(""), plan.options.changes, step,
                                CommittedChanges(from.info.changes, step)));
  if (!plan.job.config.aio.simulate) return changes;
  return MakeError(ErrorCode::kInvalidArgument,
                   "--resume with penstock.aio.simulate: a simulated drive forgets the state; take "
                   "the key out, or start a new run");
}

/// Returns the last step of the epoch in which the run resumes.
uint64_t LastStepOfEpoch(const StartPlan& plan) {
  const uint64_t rows = plan.job.data.rows();
  const config::Config& config = plan.job.config;
  if (config.rampup) return RampupOf(config).StepsWithin(rows);
  return plan.from->train.step +
         (rows - std::min(rows, plan.consumed_samples)) / config.train_batch_size;
}

/// Opens RUN on any rank.
Result<Folder> OpenShared(const Beginning& beginning) {
  Result<Folder> run = OpenRun(beginning.run);
  if (run.ok()) return run;
  return MakeError(run.error().code,
                   "{}; every rank reads the run's folder: put it where all ranks see it",
                   run.error().message);
}

/// Opens the files on each rank; a single rank locks its files exclusively.
Result<ResumePoint> OpenFilesOf(const Beginning& beginning, const std::optional<RunFolder>& folder,
                                const std::optional<std::string>& snapshot, Ranks& ranks) {
  if (ranks.alone()) return OpenResumePoint(folder->folder(), snapshot, LogNotice);
  PENSTOCK_ASSIGN(const Folder run, ranks.Agree(OpenShared(beginning)));
  if (!snapshot) {
    const Result<RunInfo> info = ReadRunInfo(run);
    const StateFiles files = info.ok() ? info->state.value_or(StateFiles()) : StateFiles();
    PENSTOCK_ASSIGN(const bool own_only, SeeOwnFilesOnly(run, files, ranks));
    if (own_only) return OpenOwnShare(run, files, ranks);
  }
  return ranks.Agree(OpenResumePoint(run, snapshot, LogNotice, offload::StateLock::kShared));
}

/// The newest commit that is whole on all ranks. The first Ctrl-C ends the search for it.
Result<ResumePoint> OpenPoint(const Beginning& beginning, const std::optional<RunFolder>& folder,
                              const std::optional<std::string>& snapshot, ModelFamilies families,
                              Ranks& ranks) {
  const Interrupt interrupt(kOpeningInterruptNotice);
  const char* const interrupted = "interrupted while the commit was verified: the run is as it was";
  PENSTOCK_ASSIGN(ResumePoint point, OpenFilesOf(beginning, folder, snapshot, ranks));
  PENSTOCK_ASSIGN(const Folder run, ranks.Agree(OpenShared(beginning)));
  // A new run gets the UUID of its first state.
  if (beginning.is_copy) MarkCopy(point, run, offload::ToString(beginning.state));
  const TogetherWith others{
      .rank = ranks.world().rank,
      .ranks = ranks.world().size,
      .agree = [&ranks](const Status& mine) { return ranks.Agree(mine); },
      .gather = [&ranks](std::string mine) { return ranks.job().Gather(std::move(mine)); },
      .progress = WatchedRead("verifying the commit of " + beginning.run, interrupt, interrupted)};
  PENSTOCK_TRY(ranks.Agree(TakeWholeCommit(point, run, others)));
  PENSTOCK_TRY(ranks.Agree(CheckInfo(point.info, *point.state, families)));
  const bool stops = interrupt.requested();
  PENSTOCK_TRY(ranks.Agree(stops ? Status(Error{ErrorCode::kCancelled, interrupted}) : Status()));
  return point;
}

}  // namespace

Result<StartPlan> PlanResume(const TrainOptions& given, ModelFamilies families, Ranks& ranks) {
  std::optional<RunFolder> folder;
  PENSTOCK_ASSIGN(Beginning beginning, BeginTogether(given, ranks, folder));
  PENSTOCK_ASSIGN(ResumePoint from,
                  OpenPoint(beginning, folder, given.resume_from, families, ranks));
  TrainOptions options = CompleteFrom(from.info, given);
  PENSTOCK_ASSIGN(TrainJob job, ranks.Agree(PrepareJob(options, &from, families, ranks.place())));
  StartPlan plan{.options = std::move(options),
                 .job = std::move(job),
                 .beginning = std::move(beginning),
                 .folder = std::move(folder),
                 .from = std::move(from)};
  PENSTOCK_ASSIGN(plan.changed, ranks.Agree(CheckResume(plan)));
  plan.SetChanges(plan.changed);
  PENSTOCK_ASSIGN(plan.consumed_samples, ranks.Agree(ConsumedSamples(plan)));
  if (!plan.options.steps) plan.job.last_step = LastStepOfEpoch(plan);
  PENSTOCK_ASSIGN(plan.skips, ranks.Agree(AddSkips(plan.from->info.skip_steps, plan.options.skips,
                                                   plan.from->train.step, plan.job.last_step)));
  return plan;
}

}  // namespace penstock::train
