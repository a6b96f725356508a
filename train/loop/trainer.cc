#include "train/loop/trainer.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <utility>

#include "run/doubted_commit.h"
#include "run/snapshot_service.h"
#include "train/loop/planned_run.h"
#include "train/loop/prepared_run.h"
#include "train/loop/progress.h"
#include "train/loop/run_watch.h"
#include "train/loop/trainer_job.h"
#include "train/loop/trainer_loop.h"
#include "train/process/log.h"

namespace penstock::train {
namespace {

constexpr uint64_t kDefaultStepsPerPrint = 10;

/// Whether the run is whole, as far as that can be seen: a training ends for what is gone, and not
/// for a file system that does not answer for a while.
Status CheckThere(const RunFolder& folder) {
  Status whole = folder.CheckWhole();
  if (whole.ok() || whole.error().code == ErrorCode::kNotFound) return whole;
  LogNotice(
      fmt::format("whether {} is whole cannot be seen: {}", folder.path(), whole.error().message));
  return {};
}

/// Keeps what the run has made.
void KeepResults(PreparedRun& run, Ranks& ranks) {
  ranks.SetCleanup({});
  if (run.folder) run.folder->Keep();
  if (run.machine.trace) run.machine.trace->Keep();
}

/// A commit is durable: it counts if RUN is there, and if the run.json in it names the state.
Status HoldCommit(PreparedRun& run, Ranks& ranks) {
  if (!run.folder) return {};
  PENSTOCK_TRY(CheckThere(*run.folder));
  if (run.has_commit) return {};
  KeepResults(run, ranks);
  PENSTOCK_TRY(run.folder->NameFirstCommit(run.info, LogNotice));
  run.has_commit = true;
  return {};
}

LoopOptions LoopOptionsOf(const PreparedRun& run) {
  return {.config = run.job.config,
          .shape = run.job.shape,
          .cost = CostOf(*run.job.model.description, run.job.spec, run.job.shape.sequence),
          .last_step = run.job.last_step,
          .consumed_samples = run.consumed_samples,
          .keeps_consumed_samples = run.keeps_consumed_samples,
          .world = run.job.world,
          .library_memory = run.machine.library_memory,
          .run_json = run.identity,
          .changed = run.changed,
          .skips = run.info.skip_steps,
          .searches_every_skip = run.options.replay.has_value(),
          .commits_last = !run.options.replay || run.options.replay->commits};
}

/// Whether a run was asked to end, or is a replay that has come as far as it should.
bool StopRequested(const PreparedRun& run) {
  const std::optional<ReplayOptions>& replay = run.options.replay;
  return run.interrupt->requested() ||
         (replay && run.machine.session->state().step >= replay->stop_after);
}

OverflowSearch SearchOf(PreparedRun& run, Ranks& ranks) {
  return {{.session = *run.machine.session,
           .model = *run.machine.model,
           .operators = *run.machine.checked,
           .exchange = [&ranks](const zero::StepNote& note) { return ranks.ExchangeNotes(note); }},
          run.job.config.dtype,
          run.job.shape.sequence,
          run.job.world};
}

/// What a loop works with: the parts of `run`, and those that are made for it on rank 0.
LoopParts LoopPartsOf(PreparedRun& run, Ranks& ranks, OverflowSearch& search, Progress* progress,
                      RunWatch* watch, SnapshotService* snapshots) {
  return {
      .session = *run.machine.session,
      .model = *run.machine.model,
      .data = run.job.data,
      .device = *run.machine.device,
      .meter = *run.machine.meter,
      .metrics = run.rows ? &*run.rows : nullptr,
      .monitor = run.monitor ? &*run.monitor : nullptr,
      .progress = progress,
      .stop_requested = [&run] { return StopRequested(run); },
      .keep_folder = [&run, &ranks] { KeepResults(run, ranks); },
      .hold_commit = [&run, &ranks] { return HoldCommit(run, ranks); },
      .note_doubt =
          [&run](std::optional<uint64_t> step) {
            if (!run.folder) return;
            const Folder& folder = run.folder->folder();
            const Status noted =
                step ? NoteDoubt(folder, {run.info.state->uuid, *step}) : RemoveDoubt(folder);
            // A run that goes on takes the commit back itself where it has to.
            if (!noted.ok()) LogNotice(noted.error().message);
          },
      .watch = watch,
      .search = &search,
      .snapshots = snapshots,
      .tell_failure = [&ranks](const Error& why) { ranks.Tell(why); },
      .exchange_notes = [&ranks](const zero::StepNote& note) { return ranks.ExchangeNotes(note); },
      .doing = ranks.doing(),
      .hosts = ranks.job().hosts()};
}

Progress::Options ProgressOptions(const TrainJob& job) {
  const auto every = static_cast<uint64_t>(job.config.steps_per_print);
  return {.out = stderr,
          .terminal = ::isatty(STDERR_FILENO) != 0,
          .every = every == 0 ? kDefaultStepsPerPrint : every,
          .breakdown = job.config.wall_clock_breakdown,
          .last_step = job.last_step};
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

/// The steps are done: all that is missing is what sums them up.
Result<RunSummary> FinishRun(const PreparedRun& run, const LoopSummary& loop) {
  RunSummary summary = Summarise(run, loop);
  summary.plan = HoldAgainstPlan(run.job, loop);
  const std::string parts = summary.plan ? PlanNotice(*summary.plan, loop.steps, loop.skipped) : "";
  if (!parts.empty()) LogNotice(parts);
  const Status written = run.folder->WriteSummary(ToJson(summary));
  const Status whole = CheckThere(*run.folder);
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

/// Trains with rank 0's view of the run: its folder, and the terminal.
Result<RunSummary> TrainFirst(PreparedRun& run, Ranks& ranks) {
  SnapshotService snapshots(
      run.folder->folder(), run.info, run.job.config.durable,
      [&run] { return run.interrupt->requested(); }, LogNotice);
  PENSTOCK_TRY(run.folder->Watch());
  Progress progress(ProgressOptions(run.job));
  const zero::Session& session = *run.machine.session;
  const std::optional<ReplayOptions>& replay = run.options.replay;
  const bool goes_on = run.options.resumes() || replay;
  PENSTOCK_ASSIGN(
      const std::unique_ptr<RunWatch> watch,
      RunWatch::Begin(run.folder->folder(), WatchedRunOf(run.job, session.layout().model),
                      goes_on ? std::optional(session.state().step) : std::nullopt,
                      replay ? replay->record : nullptr));
  OverflowSearch search = SearchOf(run, ranks);
  TrainLoop loop(LoopPartsOf(run, ranks, search, &progress, watch.get(), &snapshots),
                 LoopOptionsOf(run));
  PENSTOCK_ASSIGN(const LoopSummary done, loop.Run());
  progress.Finish();
  return FinishRun(run, done);
}

Result<RunSummary> TrainOther(PreparedRun& run, Ranks& ranks) {
  OverflowSearch search = SearchOf(run, ranks);
  TrainLoop loop(LoopPartsOf(run, ranks, search, nullptr, nullptr, nullptr), LoopOptionsOf(run));
  PENSTOCK_ASSIGN(const LoopSummary done, loop.Run());
  if (run.machine.trace) PENSTOCK_TRY(FinishTrace(*run.machine.trace, done));
  RunSummary summary = Summarise(run, done);
  summary.shown = false;
  return summary;
}

Result<std::optional<RunSummary>> TrainTogether(const TrainOptions& given, ModelFamilies families,
                                                Ranks& ranks) {
  PENSTOCK_ASSIGN(std::optional<PreparedRun> run, PrepareRun(given, families, ranks));
  std::optional<RunSummary> summary;
  if (run) {
    PENSTOCK_ASSIGN(summary,
                    ranks.OrEnd(ranks.first() ? TrainFirst(*run, ranks) : TrainOther(*run, ranks)));
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
    // All ranks have agreed on a failure that is left here, and the first says it.
    if (!outcome.ok() && !ranks->first()) std::_Exit(ExitCode(outcome.error().code));
    return outcome;
  } catch (const std::exception& exception) {
    ranks->Tell(MakeError(ErrorCode::kIo, "unexpected failure in a library: {}", exception.what()));
    throw;
  }
}

}  // namespace penstock::train
