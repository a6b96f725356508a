#include "train/trainer/prepared_resumed_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "run/doubted_commit.h"
#include "run/identity/run_changes.h"
#include "run/resume.h"
#include "run/scratch_folder.h"
#include "train/process/log.h"
#include "train/process/watched_read.h"
#include "train/trainer/own_files.h"
#include "train/trainer/prepared_replay.h"
#include "train/trainer/resume_notices.h"
#include "train/trainer/run_beginning.h"
#include "train/trainer/run_facts.h"
#include "train/weights/committed_model.h"
#include "zero/lr_schedule.h"

namespace penstock::train {
namespace {

/// If the schedule sets the learning rate, a change of the optimizer's has no effect.
Status CheckRate(const ResumePoint& from, const TrainOptions& options, const TrainJob& job) {
  constexpr std::string_view kOptimizers = "optimizer.params.lr";
  const char* const decides = zero::KeyOfRate(job.config.scheduler, from.train.optimizer_steps + 1);
  const bool asked = std::ranges::any_of(
      options.changes, [&](const RequestedChange& change) { return change.key == kOptimizers; });
  if (!asked || decides == kOptimizers) return {};
  return MakeError(ErrorCode::kInvalidArgument,
                   "--change {}: it changes nothing, because {} decides the learning rate; change "
                   "that",
                   kOptimizers, decides);
}

/// Returns the changes of the run's numbers from here on.
Result<std::vector<RunChange>> CheckResume(const ResumePoint& from, const TrainOptions& options,
                                           const TrainJob& job) {
  const uint64_t step = from.train.step;
  PENSTOCK_TRY(CheckRate(from, options, job));
  PENSTOCK_ASSIGN(std::vector<RunChange> changes,
                  AcceptChanges(from.identity, IdentityOf(options, job, ""), options.changes, step,
                                CommittedChanges(from.info.changes, step)));
  if (!job.config.aio.simulate) return changes;
  return MakeError(ErrorCode::kInvalidArgument,
                   "--resume with penstock.aio.simulate: a simulated drive forgets the state; take "
                   "the key out, or start a new run");
}

/// Resumes in the files of the commit, which are closed.
Status AdoptCommit(const ResumePoint& from, zero::Session& session, const std::string& run) {
  PENSTOCK_ASSIGN(const zero::TrainState state, session.Adopt());
  if (state.step == from.train.step) return {};
  return MakeError(ErrorCode::kUnavailable,
                   "another process trained {} from step {} to {} meanwhile; resume again", run,
                   from.train.step, state.step);
}

/// Moves the state into new files, each rank its share. Rank 0 then removes the old ones, which no
/// rank has open any more.
Status MoveTogether(ResumePoint& from, const RunInfo& info, zero::Session& session,
                    const std::optional<RunFolder>& folder, const Interrupt& interrupt,
                    Ranks& ranks) {
  PENSTOCK_TRY(
      ranks.OrEnd(FillFrom(from, session, [&interrupt] { return interrupt.requested(); })));
  if (!folder) from.state.reset();
  PENSTOCK_TRY(ranks.Agree(Status()));
  PENSTOCK_TRY(ranks.Agree(folder ? ReplaceState(from, *folder, info) : Status()));
  LogNotice(fmt::format("the state was moved to {}", info.state->first()));
  return {};
}

/// Opens the CSV files of a resumed run, on rank 0, if the configuration has them.
Result<std::optional<CsvMonitor>> ResumeMonitor(const ResumePoint& from, const TrainJob& job,
                                                uint64_t samples) {
  if (!job.config.csv_monitor) return std::optional<CsvMonitor>();
  PENSTOCK_ASSIGN(
      CsvMonitor monitor,
      CsvMonitor::Resume(job.config,
                         {.samples = samples, .sequence = job.shape.sequence, .row = from.row},
                         LogNotice));
  return std::optional(std::move(monitor));
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

/// A rank's view of the run that it resumes, before it makes anything.
struct Continued {
  std::optional<RunFolder> folder;
  Beginning beginning;
  ResumePoint from;
  TrainOptions options;
  TrainJob job;
  uint64_t consumed_samples;
  std::vector<RunChange> changes;  ///< changes made now
  std::vector<StepRange> skips;    ///< all ranges that are or were passed over

  /// Returns the changes of the commit, and these.
  std::vector<RunChange> AllChanges() const {
    std::vector<RunChange> all = CommittedChanges(from.info.changes, from.train.step);
    all.insert(all.end(), changes.begin(), changes.end());
    return all;
  }
};

Result<Continued> OpenToContinue(const TrainOptions& given, ModelFamilies families, Ranks& ranks) {
  std::optional<RunFolder> folder;
  PENSTOCK_ASSIGN(Beginning beginning, BeginTogether(given, ranks, folder));
  PENSTOCK_ASSIGN(ResumePoint from,
                  OpenPoint(beginning, folder, given.resume_from, families, ranks));
  TrainOptions options = CompleteFrom(from.info, given);
  PENSTOCK_ASSIGN(TrainJob job, ranks.Agree(PrepareJob(options, &from, families, ranks.place())));
  PENSTOCK_ASSIGN(std::vector<RunChange> changes, ranks.Agree(CheckResume(from, options, job)));
  PENSTOCK_ASSIGN(const uint64_t consumed, ranks.Agree(ConsumedSamples(from, job)));
  if (!options.steps) job.last_step = LastStepOfEpoch(from, job, consumed);
  PENSTOCK_ASSIGN(
      std::vector<StepRange> skips,
      ranks.Agree(AddSkips(from.info.skip_steps, options.skips, from.train.step, job.last_step)));
  PENSTOCK_TRY(CheckAllAlike(options, job, &from, ranks));
  return Continued{.folder = std::move(folder),
                   .beginning = std::move(beginning),
                   .from = std::move(from),
                   .options = std::move(options),
                   .job = std::move(job),
                   .consumed_samples = consumed,
                   .changes = std::move(changes),
                   .skips = std::move(skips)};
}

/// The commit is of the last step already: only its row and its lines may be missing.
Status CloseCommitted(const Continued& run, const RunFolder& folder) {
  const ResumePoint& from = run.from;
  PENSTOCK_TRY(folder.ResumeRows(from.train.step, from.row, LogNotice).status());
  PENSTOCK_TRY(ResumeMonitor(from, run.job, run.consumed_samples).status());
  LogNotice(fmt::format("step {} of {} is committed already: nothing is left to do",
                        from.train.step, folder.path()));
  PENSTOCK_ASSIGN(const bool summed_up, folder.HasSummary());
  if (!summed_up) {
    LogNotice(fmt::format("{} is not there: the program that trained last was cut off before it",
                          folder.SummaryPath()));
  }
  return {};
}

/// Completes an interrupted earlier start or replay, on rank 0.
Status CompleteAll(ResumePoint& from, const RunFolder& folder) {
  Result<std::optional<LeftScratch>> replay =
      FindLeftScratch(folder.folder(), ReplayScratchName(from.current().run_uuid));
  // If it cannot be removed, the next replay or clean reports that.
  if (replay.ok() && *replay) static_cast<void>((*replay)->Remove());
  return CompleteEarlier(from, folder);
}

}  // namespace

Result<std::optional<PreparedRun>> PrepareResumedRun(const TrainOptions& given,
                                                     ModelFamilies families, Ranks& ranks) {
  PENSTOCK_ASSIGN(Continued run, OpenToContinue(given, families, ranks));
  ResumePoint& from = run.from;
  auto interrupt =
      std::make_unique<Interrupt>(given.replay ? kReplayInterruptNotice : kInterruptNotice);
  PENSTOCK_TRY(ranks.Agree(run.folder ? CompleteAll(from, *run.folder) : Status()));
  ranks.ReportTo(run.beginning.run, from.current().run_uuid);
  // A copy still gets its own state.
  const bool goes_on = from.replaced || from.is_copy;
  if (!goes_on && from.train.step >= run.job.last_step) {
    PENSTOCK_TRY(ranks.Agree(run.folder ? CloseCommitted(run, *run.folder) : Status()));
    return std::optional<PreparedRun>();
  }
  const Beginning& beginning = run.beginning;
  PENSTOCK_ASSIGN(const StatePlan state,
                  PlanStateAfter(from, run.job, beginning.run, beginning.state, ranks));
  RunInfo info = InfoOf(run.options, run.job, beginning.run, state.files, from.current().run_uuid);
  info.changes = run.AllChanges();
  info.skip_steps = run.skips;
  const bool announces = !state.adopt && run.folder;
  PENSTOCK_TRY(ranks.Agree(announces ? AnnounceMove(from, *run.folder, state.files) : Status()));
  PENSTOCK_ASSIGN(Machine machine,
                  CreateMachine(run.options, run.job, state, ranks, beginning.session_number));
  LogResume(from, run.job, machine.operators->arithmetic(), run.changes);
  if (state.adopt) {
    PENSTOCK_TRY(ranks.Agree(AdoptCommit(from, *machine.session, beginning.run)));
    PENSTOCK_TRY(ranks.Agree(run.folder ? NoteChanges(from, info, *run.folder) : Status()));
  } else {
    PENSTOCK_TRY(MoveTogether(from, info, *machine.session, run.folder, *interrupt, ranks));
  }
  // The commit in doubt is erased, or its state no longer belongs to the run.
  PENSTOCK_TRY(ranks.Agree(run.folder ? RemoveDoubt(run.folder->folder()) : Status()));
  if (run.job.config.durable) ranks.Committed(from.train.step);
  PreparedRun prepared{.folder = std::move(run.folder),
                       .options = std::move(run.options),
                       .job = std::move(run.job),
                       .interrupt = std::move(interrupt),
                       .info = std::move(info),
                       .has_commit = true,
                       .machine = std::move(machine)};
  prepared.consumed_samples = run.consumed_samples;
  prepared.keeps_consumed_samples = ChangesBatch(from, run.changes);
  for (const RunChange& change : run.changes) prepared.changed.push_back(change.key);
  PENSTOCK_TRY(ranks.Agree(Complete(prepared, [&from](RunFolder& opened) {
    return opened.ResumeRows(from.train.step, from.row, LogNotice);
  })));
  Result<std::optional<CsvMonitor>> monitor =
      prepared.folder ? ResumeMonitor(from, prepared.job, prepared.consumed_samples)
                      : std::optional<CsvMonitor>();
  PENSTOCK_TRY(ranks.Agree(monitor.status()));
  prepared.monitor = *std::move(monitor);
  return std::optional(std::move(prepared));
}

}  // namespace penstock::train
