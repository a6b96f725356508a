#include "train/trainer/trainer.h"

#include <fmt/format.h>

#include <cstdlib>
#include <exception>
#include <memory>
#include <utility>

#include "base/exception_name.h"
#include "run/observers/kept_folder.h"
#include "train/loop/rank_notes.h"
#include "train/loop/run_failure.h"
#include "train/loop/step_batch.h"
#include "train/loop/trainer_loop.h"
#include "train/process/log.h"
#include "train/trainer/planned_run.h"
#include "train/trainer/prepared_run.h"
#include "train/trainer/run_observers.h"

namespace penstock::train {
namespace {

LoopOptions LoopOptionsOf(const PreparedRun& run) {
  return {.config = run.job.config,
          .cost = CostOf(*run.job.model.description, run.job.spec, run.job.shape.sequence),
          .last_step = run.job.last_step,
          .keeps_consumed_samples = run.keeps_consumed_samples,
          .run_json = run.identity,
          .changed = run.changed,
          .skips = run.info.skip_steps,
          .commits_last = !run.options.replay || run.options.replay->commits};
}

/// Whether a run was asked to end, or is a replay at its last step.
bool StopRequested(const PreparedRun& run) {
  const std::optional<ReplayOptions>& replay = run.options.replay;
  return run.interrupt->requested() ||
         (replay && run.machine.session->state().step >= replay->stop_after);
}

RankNotes NotesOf(const PreparedRun& run, Ranks& ranks, const SnapshotService* snapshots) {
  return {{.session = *run.machine.session,
           .device = *run.machine.device,
           .meter = *run.machine.meter,
           .stop_requested = [&run] { return StopRequested(run); },
           .snapshots = snapshots,
           .exchange = [&ranks](const zero::StepNote& note) { return ranks.ExchangeNotes(note); }},
          run.job.world,
          run.machine.library_memory};
}

RunSummary Summarise(const PreparedRun& run, const LoopSummary& loop) {
  const TrainJob& job = run.job;
  const zero::Session& session = *run.machine.session;
  return {.loop = loop,
          .cost = CostOf(*job.model.description, job.spec, job.shape.sequence),
          .device_memory = job.budget.device,
          .host_memory = job.budget.host,
          .aio_engine = session.aio_engine(),
          .device = device::ToString(job.device),
          .device_name = run.machine.device->name(),
          .seed = *run.options.seed,
          .config = job.config,
          .layout = session.layout()};
}

Status FinishTrace(Trace& trace, const LoopSummary& loop) {
  trace.Keep();
  const Status finished = trace.Finish();
  if (finished.ok()) return {};
  return MakeError(finished.error().code,
                   "{}; the training is complete, and step {} is committed; the trace is not",
                   finished.error().message, loop.committed_step);
}

/// Writes the summary after the last step.
Result<RunSummary> FinishRun(const PreparedRun& run, const LoopSummary& loop) {
  RunSummary summary = Summarise(run, loop);
  summary.plan = HoldAgainstPlan(run.job, loop);
  const std::string parts = summary.plan ? PlanNotice(*summary.plan, loop.steps, loop.skipped) : "";
  if (!parts.empty()) LogNotice(parts);
  const Status written = run.folder->WriteSummary(ToJson(summary));
  const Status whole = CheckThere(*run.folder, LogNotice);
  if (!whole.ok()) {
    return MakeError(whole.error().code, "{}; {}", whole.error().message,
                     CommittedIn(loop.committed_step, *run.machine.session, whole.error()));
  }
  if (!written.ok()) {
    return MakeError(written.error().code, "{}; step {} is committed, only summary.json is missing",
                     written.error().message, loop.committed_step);
  }
  if (run.machine.trace) PENSTOCK_TRY(FinishTrace(*run.machine.trace, loop));
  return summary;
}

/// The same on a rank that does not write RUN.
Result<RunSummary> FinishOther(const PreparedRun& run, const LoopSummary& loop) {
  if (run.machine.trace) PENSTOCK_TRY(FinishTrace(*run.machine.trace, loop));
  RunSummary summary = Summarise(run, loop);
  summary.shown = false;
  return summary;
}

Result<RunSummary> TrainPrepared(PreparedRun& run, Ranks& ranks) {
  StepBatch batch(run.job.data, run.job.shape, run.job.config, run.job.world, run.consumed_samples);
  PENSTOCK_ASSIGN(const std::unique_ptr<RunObservers> observers,
                  RunObservers::Make(run, ranks, batch));
  RankNotes notes = NotesOf(run, ranks, observers->snapshots());
  TrainLoop loop({.session = *run.machine.session,
                  .model = *run.machine.model,
                  .batch = batch,
                  .notes = notes,
                  .observers = observers->all()},
                 LoopOptionsOf(run));
  PENSTOCK_ASSIGN(const LoopSummary done, loop.Run());
  return ranks.first() ? FinishRun(run, done) : FinishOther(run, done);
}

Result<std::optional<RunSummary>> TrainTogether(const TrainOptions& given, ModelFamilies families,
                                                Ranks& ranks) {
  PENSTOCK_ASSIGN(std::optional<PreparedRun> run, PrepareRun(given, families, ranks));
  std::optional<RunSummary> summary;
  if (run) {
    PENSTOCK_ASSIGN(summary, ranks.OrEnd(TrainPrepared(*run, ranks)));
  }
  PENSTOCK_TRY(ranks.Finish());
  return summary;
}

}  // namespace

Result<std::optional<RunSummary>> Train(const TrainOptions& given, ModelFamilies families) {
  PENSTOCK_ASSIGN(const std::unique_ptr<Ranks> ranks, Ranks::Join(ReadEnvironment));
  try {
    Result<std::optional<RunSummary>> outcome =
        ranks->OrEnd(TrainTogether(given, families, *ranks));
    // All ranks have agreed on a failure that reaches this point, and rank 0 reports it.
    if (!outcome.ok() && !ranks->first()) std::_Exit(ExitCode(outcome.error().code));
    return outcome;
  } catch (const std::exception& exception) {
    ranks->Tell(
        MakeError(ErrorCode::kIo, "unexpected failure in a library: {}", ExceptionName(exception)));
    throw;
  }
}

}  // namespace penstock::train
