#include "train/trainer/run_observers.h"

#include <unistd.h>

#include <cstdio>
#include <span>

#include "run/observers/watched_run.h"
#include "train/process/log.h"

namespace penstock::train {
namespace {

constexpr uint64_t kDefaultStepsPerPrint = 10;

Progress::Options ProgressOptions(const TrainJob& job) {
  const auto every = static_cast<uint64_t>(job.config.steps_per_print);
  return {.out = stderr,
          .terminal = ::isatty(STDERR_FILENO) != 0,
          .every = every == 0 ? kDefaultStepsPerPrint : every,
          .breakdown = job.config.wall_clock_breakdown,
          .last_step = job.last_step};
}

WatchedRun Watched(const TrainJob& job, const offload::ModelLayout& layout) {
  WatchedRun watched = WatchedRunOf(job.config, job.spec, layout);
  watched.facts.vocabulary = job.model.description->sizes().vocabulary;
  return watched;
}

SearchRule RuleOf(const PreparedRun& run) {
  const std::optional<config::LossScaling>& scaling = run.job.config.loss_scaling;
  return {scaling && scaling->loss_scale == 0, run.options.replay.has_value()};
}

}  // namespace

RunObservers::RunObservers(PreparedRun& run, Ranks& ranks, const StepBatch& batch)
    : ranks_({.doing = ranks.doing(),
              .tell = [&ranks](const Error& why) { ranks.Tell(why); },
              .hosts = ranks.job().hosts(),
              .notify = LogNotice}),
      overflow_search_(
          {.session = *run.machine.session,
           .model = *run.machine.model,
           .operators = *run.machine.checked,
           .exchange = [&ranks](const zero::StepNote& note) { return ranks.ExchangeNotes(note); }},
          run.job.config.dtype, run.job.shape.sequence, run.job.world),
      search_(RuleOf(run), run.job.last_step,
              [this, &batch](const StepNumbers& numbers) {
                list_.Doing("computes again, to find what overflows,", numbers.step);
                return overflow_search_.Run(batch.inputs(), batch.targets(), numbers.forward_finite,
                                            [&batch](uint64_t micro_batch, uint64_t i) {
                                              return batch.RowOf(micro_batch, i);
                                            });
              }),
      folder_(
          run.folder ? &*run.folder : nullptr,
          run.has_commit ? std::nullopt : std::optional(run.info),
          [&run, &ranks] {
            ranks.SetCleanup({});
            if (run.machine.trace) run.machine.trace->Keep();
          },
          LogNotice) {
  list_.Add(Turn::kRanks, ranks_);
  list_.Add(Turn::kSearch, search_);
  list_.Add(Turn::kFolder, folder_);
  if (run.machine.trace) list_.Add(Turn::kTrace, spans_.emplace(*run.machine.trace));
}

Status RunObservers::AddFirst(PreparedRun& run) {
  const Folder& folder = run.folder->folder();
  PENSTOCK_TRY(run.folder->Watch());
  const zero::Session& session = *run.machine.session;
  const std::optional<ReplayOptions>& replay = run.options.replay;
  const bool goes_on = run.options.resumes() || replay;
  PENSTOCK_ASSIGN(watch_,
                  RunWatch::Begin(folder, Watched(run.job, session.layout().model),
                                  goes_on ? std::optional(session.state().step) : std::nullopt,
                                  LogNotice, replay ? replay->record : nullptr));
  list_.Add(Turn::kWatch, *watch_);
  // A running process takes the commit back itself if needed.
  list_.Add(Turn::kDoubt, doubt_.emplace(folder, run.info.state->uuid, LogNotice));
  list_.Add(Turn::kRows, rows_.emplace(*run.rows, run.monitor ? &*run.monitor : nullptr));
  list_.Add(Turn::kProgress, progress_.emplace(ProgressOptions(run.job)));
  list_.Add(Turn::kSnapshots, snapshots_.emplace(
                                  folder, run.info, run.job.config.durable,
                                  static_cast<uint64_t>(run.job.config.keep_snapshots),
                                  [&run] { return run.interrupt->requested(); }, LogNotice));
  return {};
}

Result<std::unique_ptr<RunObservers>> RunObservers::Make(PreparedRun& run, Ranks& ranks,
                                                         const StepBatch& batch) {
  std::unique_ptr<RunObservers> observers(new RunObservers(run, ranks, batch));
  if (ranks.first()) PENSTOCK_TRY(observers->AddFirst(run));
  return observers;
}

}  // namespace penstock::train
