#include "train/trainer/prepared_run.h"

#include <fmt/format.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "run/doubted_commit.h"
#include "run/resume.h"
#include "run/scratch_folder.h"
#include "run/snapshot.h"
#include "run/state_owner.h"
#include "train/process/log.h"
#include "train/trainer/start_plan.h"
#include "zero/states/tile_fill.h"

namespace penstock::train {
namespace {

/// Ranks exchange the command line as JSON, which must be UTF-8.
Status CheckTexts(const TrainOptions& given) {
  PENSTOCK_TRY(CheckPath(given.out, "--out"));
  return given.resume_from ? CheckSnapshotName(*given.resume_from) : Status();
}

/// Returns the changes as on the command line; "nothing" if there are none.
std::string TextOf(const std::vector<RequestedChange>& changes) {
  std::string text;
  for (const RequestedChange& change : changes) {
    text += fmt::format("{}{}={}", text.empty() ? "" : " ", change.key, change.value);
  }
  return text.empty() ? "nothing" : text;
}

/// `source` that ends with kCancelled when the user wants to stop.
zero::TensorSource Interruptible(zero::TensorSource source, const Interrupt& interrupt) {
  return [source = std::move(source), &interrupt](zero::ModuleId module, size_t tensor,
                                                  uint64_t begin, std::span<float> values) {
    if (interrupt.requested()) {
      return Status(MakeError(ErrorCode::kCancelled,
                              "interrupted before the first step: nothing was trained and nothing "
                              "is kept"));
    }
    return source(module, tensor, begin, values);
  };
}

/// Removes a run that has not begun: a rank's files and, on rank 0, RUN. A killed rank cannot
/// remove its own files: rank 0 does so on its host, and keeps RUN, which names them, if ranks are
/// on other hosts.
std::function<void()> RemovalOf(const StateFiles& files, const comm::World& world,
                                const std::string& run) {
  if (world.size == 1) return {};
  const RankFiles& own = files.ranks[world.rank];
  if (world.rank > 0) {
    return [paths = own.paths] {
      for (const std::string& path : paths) ::unlink(path.c_str());
    };
  }
  std::vector<std::string> paths;
  bool one_host = true;
  for (const RankFiles& rank : files.ranks) {
    if (rank.host == own.host) paths.insert(paths.end(), rank.paths.begin(), rank.paths.end());
    one_host = one_host && rank.host == own.host;
  }
  return [paths = std::move(paths), one_host, run, uuid = files.uuid] {
    for (const std::string& path : paths) ::unlink(path.c_str());
    if (one_host) RemoveNewRun(run, uuid);
  };
}

/// Makes RUN, and plans its state.
Result<StatePlan> BeginRun(StartPlan& plan, Ranks& ranks) {
  const TrainJob& job = plan.job;
  PENSTOCK_TRY(ranks.Agree(ranks.first() ? CsvMonitor::CheckFree(job.config) : Status()));
  PENSTOCK_ASSIGN(plan.beginning, BeginTogether(plan.options, ranks, plan.folder));
  const std::string& run = plan.beginning.run;
  if (ranks.first() && !ranks.alone()) {
    ranks.SetCleanup(
        [run, uuid = offload::ToString(plan.beginning.state)] { RemoveNewRun(run, uuid); });
  }
  PENSTOCK_TRY(ranks.Agree(plan.folder ? CheckNoOrphan(run, job.config.nvme_paths) : Status()));
  PENSTOCK_ASSIGN(StatePlan state, PlanNewState(job, run, plan.beginning.state, ranks));
  ranks.SetCleanup(RemovalOf(state.files, job.world, run));
  ranks.ReportTo(run, state.files.uuid);
  return state;
}

/// Completes an interrupted earlier start or replay, on rank 0.
Status CompleteAll(ResumePoint& from, const RunFolder& folder) {
  Result<std::optional<LeftScratch>> replay =
      FindLeftScratch(folder.folder(), ReplayScratchName(from.current().run_uuid));
  // If it cannot be removed, the next replay or clean reports that.
  if (replay.ok() && *replay) static_cast<void>((*replay)->Remove());
  return CompleteEarlier(from, folder);
}

/// Opens the CSV files, if the configuration has them.
Result<std::optional<CsvMonitor>> OpenMonitor(const StartPlan& plan) {
  const config::Config& config = plan.job.config;
  if (!config.csv_monitor) return std::optional<CsvMonitor>();
  Result<CsvMonitor> monitor = plan.resumes()
                                   ? CsvMonitor::Resume(config,
                                                        {.samples = plan.consumed_samples,
                                                         .sequence = plan.job.shape.sequence,
                                                         .row = plan.from->row},
                                                        LogNotice)
                                   : CsvMonitor::Create(config);
  PENSTOCK_TRY(monitor.status());
  return std::optional(*std::move(monitor));
}

/// Opens the rows that the steps will follow.
Result<MetricsWriter> OpenRows(const StartPlan& plan) {
  const RunFolder& folder = *plan.folder;
  if (!plan.from) return folder.CreateRows();
  const ResumePoint& from = *plan.from;
  if (!plan.resumes()) {
    const ReplayOptions& replay = *plan.options.replay;
    PENSTOCK_ASSIGN(const Folder of, OpenRun(replay.run));
    PENSTOCK_ASSIGN(const Folder rows,
                    replay.snapshot ? OpenSnapshot(of, *replay.snapshot) : of.Reopen());
    PENSTOCK_TRY(CopyRows(rows, folder.folder(), from.train.step));
  }
  return folder.ResumeRows(from.train.step, from.row, LogNotice);
}

/// What follows the steps: rows, and CSV files if there are any.
struct Lines {
  std::optional<MetricsWriter> rows;
  std::optional<CsvMonitor> monitor;
};

Result<Lines> OpenLines(const StartPlan& plan) {
  Lines lines;
  PENSTOCK_ASSIGN(lines.rows, OpenRows(plan));
  PENSTOCK_ASSIGN(lines.monitor, OpenMonitor(plan));
  return lines;
}

/// Of a run whose last step is committed, only its row and its lines may be missing.
Status CloseDone(const StartPlan& plan) {
  PENSTOCK_TRY(OpenLines(plan).status());
  const RunFolder& folder = *plan.folder;
  LogNotice(fmt::format("step {} of {} is committed already: nothing is left to do",
                        plan.from->train.step, folder.path()));
  PENSTOCK_ASSIGN(const bool summed_up, folder.HasSummary());
  if (!summed_up) {
    LogNotice(fmt::format("{} is not there: the program that trained last was cut off before it",
                          folder.SummaryPath()));
  }
  return {};
}

/// Names a new state in run.json before its files are made, so that a kill leaves none unknown.
Status Announce(const StartPlan& plan, const RunInfo& info, const StatePlan& state) {
  if (!plan.folder || state.adopt) return {};
  if (plan.resumes()) return AnnounceMove(*plan.from, *plan.folder, state.files);
  RunInfo before = info;
  before.state.reset();
  before.leftovers = {state.files};
  return plan.folder->WriteInfo(before);
}

/// Resumes in the files of the commit, which are closed.
Status AdoptCommit(const StartPlan& plan, zero::Session& session) {
  PENSTOCK_ASSIGN(const zero::TrainState state, session.Adopt());
  const uint64_t step = plan.from->train.step;
  if (state.step == step) return {};
  return MakeError(ErrorCode::kUnavailable,
                   "another process trained {} from step {} to {} meanwhile; resume again",
                   plan.beginning.run, step, state.step);
}

/// Fills a new state with the commit; kCancelled, with the text `interrupted`.
Status FillFrom(const ResumePoint& from, zero::Session& session, const Interrupt& interrupt,
                const char* interrupted) {
  PENSTOCK_ASSIGN(const zero::TileFill fill, zero::FillFromState(session.layout(), *from.state));
  const zero::TileFill until_stopped = [&](offload::TileId tile, std::span<std::byte> weight,
                                           std::span<std::byte> record) -> Status {
    if (interrupt.requested()) return Error{ErrorCode::kCancelled, interrupted};
    return fill(tile, weight, record);
  };
  return session.Fill(until_stopped, from.train);
}

Status FillReplay(const StartPlan& plan, Machine& machine, const Interrupt& interrupt) {
  const ResumePoint& from = *plan.from;
  PENSTOCK_TRY(CheckArithmetic(plan, machine.operators->arithmetic()));
  const offload::ModelLayout& model = machine.session->layout().model;
  const bool fits = plan.options.replay->other_dtype ? model.modules == from.state->model().modules
                                                     : model.HasTensorsOf(from.state->model());
  if (!fits) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "replay: the commit in {} has other tensors or optimizer states than this "
                     "program uses for the model; replay it with the version that wrote it",
                     from.info.state->first());
  }
  return FillFrom(from, *machine.session, interrupt, "interrupted while the commit was read");
}

/// Moves this rank's share of the state into new files.
Status FillMoved(const ResumePoint& from, zero::Session& session, const Interrupt& interrupt) {
  if (!session.layout().model.HasTensorsOf(from.state->model())) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "the commit in {} has other tensors or optimizer states than this program "
                     "makes of the model; export it with the version that wrote it",
                     from.info.state->first());
  }
  PENSTOCK_TRY(FillFrom(from, session, interrupt,
                        "interrupted while the state was moved: the run is as it was"));
  return session.Commit(from.train.run_json);
}

/// Moves the state, each rank its share. Rank 0 then removes the old files, which no rank has open
/// any more.
Status MoveTogether(StartPlan& plan, const RunInfo& info, zero::Session& session,
                    const Interrupt& interrupt, Ranks& ranks) {
  ResumePoint& from = *plan.from;
  PENSTOCK_TRY(ranks.OrEnd(FillMoved(from, session, interrupt)));
  if (!plan.folder) from.state.reset();
  PENSTOCK_TRY(ranks.Agree(Status()));
  PENSTOCK_TRY(ranks.Agree(plan.folder ? ReplaceState(from, *plan.folder, info) : Status()));
  LogNotice(fmt::format("the state was moved to {}", info.state->first()));
  return {};
}

/// Has the states hold that with which the run begins.
Status Fill(StartPlan& plan, const RunInfo& info, bool adopt, Machine& machine,
            const Interrupt& interrupt, Ranks& ranks) {
  zero::Session& session = *machine.session;
  if (!plan.from) {
    return ranks.Agree(session.Initialize(Interruptible(plan.job.weights, interrupt)));
  }
  if (!plan.resumes()) return FillReplay(plan, machine, interrupt);
  LogNotices(plan.Notices(machine.operators->arithmetic()));
  if (adopt) {
    PENSTOCK_TRY(ranks.Agree(AdoptCommit(plan, session)));
    PENSTOCK_TRY(ranks.Agree(plan.folder ? NoteChanges(*plan.from, info, *plan.folder) : Status()));
  } else {
    PENSTOCK_TRY(MoveTogether(plan, info, session, interrupt, ranks));
  }
  // The commit in doubt is erased, or its state no longer belongs to the run.
  PENSTOCK_TRY(ranks.Agree(plan.folder ? RemoveDoubt(plan.folder->folder()) : Status()));
  if (plan.job.config.durable) ranks.Committed(plan.from->train.step);
  return {};
}

Result<std::optional<PreparedRun>> CarryOut(StartPlan plan, Ranks& ranks) {
  auto interrupt =
      std::make_unique<Interrupt>(plan.options.replay ? kReplayInterruptNotice : kInterruptNotice);
  if (plan.resumes()) {
    PENSTOCK_TRY(ranks.Agree(plan.folder ? CompleteAll(*plan.from, *plan.folder) : Status()));
    ranks.ReportTo(plan.beginning.run, plan.from->current().run_uuid);
  }
  if (plan.IsDone()) {
    PENSTOCK_TRY(ranks.Agree(plan.folder ? CloseDone(plan) : Status()));
    return std::optional<PreparedRun>();
  }
  const Beginning& begun = plan.beginning;
  PENSTOCK_ASSIGN(const StatePlan state,
                  plan.resumes()
                      ? PlanStateAfter(*plan.from, plan.job, begun.run, begun.state, ranks)
                      : BeginRun(plan, ranks));
  RunInfo info = plan.Info(state.files);
  PENSTOCK_TRY(ranks.Agree(Announce(plan, info, state)));
  PENSTOCK_ASSIGN(Machine machine,
                  CreateMachine(plan.options, plan.job, state, ranks, begun.session_number));
  PENSTOCK_TRY(Fill(plan, info, state.adopt, machine, *interrupt, ranks));
  PENSTOCK_ASSIGN(Lines lines, ranks.Agree(plan.folder ? OpenLines(plan) : Lines()));
  const bool has_commit = plan.resumes();
  std::string identity = plan.Identity(machine.operators->arithmetic());
  PreparedRun run{.folder = std::move(plan.folder),
                  .options = std::move(plan.options),
                  .job = std::move(plan.job),
                  .interrupt = std::move(interrupt),
                  .info = std::move(info),
                  .has_commit = has_commit,
                  .machine = std::move(machine),
                  .rows = std::move(lines.rows),
                  .monitor = std::move(lines.monitor),
                  .identity = std::move(identity),
                  .consumed_samples = plan.consumed_samples,
                  .keeps_consumed_samples = plan.keeps_consumed_samples};
  for (const RunChange& change : plan.changed) run.changed.push_back(change.key);
  return std::optional(std::move(run));
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
  PENSTOCK_ASSIGN(StartPlan plan, given.resumes() ? PlanResume(given, families, ranks)
                                  : given.replay  ? PlanReplay(given, families, ranks)
                                                  : PlanNew(given, families, ranks));
  PENSTOCK_TRY(CheckAllAlike(plan, ranks));
  return CarryOut(std::move(plan), ranks);
}

}  // namespace penstock::train
