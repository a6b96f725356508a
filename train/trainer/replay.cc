#include "train/trainer/replay.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/files.h"
#include "base/units.h"
#include "comm/job.h"
#include "numerics/conclusion.h"
#include "numerics/thresholds.h"
#include "offload/whole_commit.h"
#include "run/committed_run.h"
#include "run/identity/replay_plan.h"
#include "run/leftovers.h"
#include "run/run_folder.h"
#include "run/run_lock.h"
#include "run/scratch_folder.h"
#include "run/snapshot.h"
#include "tools/row_comparison.h"
#include "tools/run_numerics.h"
#include "train/process/interrupt.h"
#include "train/process/log.h"
#include "train/process/watched_read.h"
#include "train/trainer/prepared_run.h"
#include "train/trainer/ranks.h"
#include "train/trainer/trainer.h"
#include "train/weights/committed_model.h"

namespace penstock::train {
namespace {

constexpr const char* kLatest = "latest";
constexpr const char* kWasInterrupted = "interrupted: the run is as it was";

Error Refused(const std::string& what) { return {ErrorCode::kInvalidArgument, "replay: " + what}; }

/// The commit with which a replay begins.
struct Origin {
  std::optional<std::string> snapshot;  ///< none: the run's last commit
  RunInfo info;                         ///< info of the run, or of the snapshot
  uint64_t step = 0;
  offload::CommitName commit;
  std::string identity;
  std::string row;
};

Result<Origin> ReadOrigin(const Folder& of, const std::optional<std::string>& snapshot) {
  Origin origin{.snapshot = snapshot};
  PENSTOCK_ASSIGN(origin.info, ReadCommittedInfo(of));
  PENSTOCK_ASSIGN(const StateFiles files, CommittedFiles(origin.info, of.path()));
  PENSTOCK_ASSIGN(const std::unique_ptr<zero::CommittedState> state, OpenFiles(files));
  const Interrupt interrupt(kReplayInterruptNotice);
  PENSTOCK_ASSIGN(
      const std::string left,
      offload::UseWholeCommit(
          *state, WatchedRead("verifying the commit of " + of.path(), interrupt, kWasInterrupted)));
  if (!left.empty()) LogNotice(left);
  PENSTOCK_TRY(CheckInfo(origin.info, *state));
  const zero::TrainState& train = state->train_state();
  PENSTOCK_ASSIGN(CommitTexts texts,
                  ReadCommitTexts(train.run_json, train.step, origin.info.state->first()));
  origin.step = train.step;
  origin.commit = state->commit();
  origin.identity = std::move(texts.identity);
  origin.row = std::move(texts.row);
  return origin;
}

Error NoSuchCommit(const ReplayCommand& command, const Folder& run, const Result<Origin>& latest) {
  const std::vector<std::string> names = Snapshots(run);
  return Refused(fmt::format(
      "--from {}: {} has no commit of that name; there is {}{}", command.from, command.run,
      latest.ok() ? fmt::format("latest, of step {}", latest->step) : "none that can be opened",
      names.empty() ? "" : fmt::format(", and the snapshots {}", fmt::join(names, ", "))));
}

/// A step number can only name the newest commit; other names are snapshots.
Result<Origin> FindOrigin(const ReplayCommand& command, const Folder& run) {
  const Result<uint64_t> step = ParseWhole(command.from);
  Result<Origin> latest = Refused("");
  if (command.from == kLatest || step.ok()) {
    latest = ReadOrigin(run, std::nullopt);
    if (command.from == kLatest || (latest.ok() && latest->step == *step)) return latest;
  }
  const bool can_be_name = CheckSnapshotName(command.from).ok();
  const Result<Folder> snapshot =
      can_be_name ? OpenSnapshot(run, command.from) : Result<Folder>(Refused(""));
  if (snapshot.ok()) return ReadOrigin(*snapshot, command.from);
  if (can_be_name && snapshot.error().code != ErrorCode::kNotFound) return snapshot.error();
  if (!step.ok()) latest = ReadOrigin(run, std::nullopt);
  return NoSuchCommit(command, run, latest);
}

/// Whether the run trained on from this snapshot: it may have resumed from an earlier one since,
/// with other numbers.
Status CheckIsOfRun(const Origin& origin, const RunInfo& current, const Folder& run) {
  if (!origin.snapshot) return {};
  PENSTOCK_ASSIGN(const std::string difference, DifferenceFromRow(run, origin.step, origin.row));
  const bool same_changes = CommittedChanges(current.changes, origin.step) ==
                            CommittedChanges(origin.info.changes, origin.step);
  if (difference.empty() && same_changes) return {};
  return Refused(fmt::format(
      "--from {}: {} was reset since that snapshot of step {}, and has other steps now{}; name "
      "a commit of these",
      *origin.snapshot, run.path(), origin.step,
      difference.empty() ? "" : fmt::format(" (step {}: {})", origin.step, difference)));
}

Status CheckLast(const ReplayCommand& command, const Origin& origin, const RunInfo& current) {
  if (command.to <= origin.step) {
    return Refused(
        fmt::format("--to {}: the commit is of step {} already; give a later step, or an "
                    "earlier commit",
                    command.to, origin.step));
  }
  for (const StepRange& range : current.skip_steps) {
    if (!range.Has(command.to)) continue;
    return Refused(fmt::format("--to {}: the run passed over steps {} to {}; give another step",
                               command.to, range.first, range.last));
  }
  return {};
}

Status CheckWhole(const RunInfo& info, const std::string& run) {
  if (info.leftovers.empty() && !info.rows_from) return {};
  return MakeError(ErrorCode::kUnavailable,
                   "replay: a resume that moves the state of {} was cut off; resume it once more, "
                   "which completes that",
                   run);
}

/// The inputs of all passes of a replay.
struct Replay {
  const ReplayCommand& command;
  const Folder& run;
  const RunInfo& current;
  const Origin& origin;
  const ScratchFolder& scratch;
  std::vector<ReplaySegment> segments;
};

/// The result of computing the steps once.
struct ReplayPass {
  std::string run;  ///< the folder of the run that computed them
  ReplayedSteps record;
  std::optional<std::string> stopped;  ///< reason for an end before the last step
};

Result<std::string> WriteScratch(const Replay& replay, const std::string& name,
                                 const std::string& text) {
  const std::string path = replay.scratch.path() + "/" + name;
  PENSTOCK_TRY(WriteTextFile(path, text, IfExists::kFail));
  return path;
}

/// The options of all segments of a pass.
Result<TrainOptions> OptionsOf(const Replay& replay, bool fp32, const std::string& pass) {
  const RunInfo& info = replay.origin.info;
  PENSTOCK_ASSIGN(const std::string config,
                  ReplayConfig(replay.origin.identity, replay.scratch.path(), fp32));
  TrainOptions options;
  PENSTOCK_ASSIGN(options.model,
                  WriteScratch(replay, pass + "-model.json", info.training.model_json));
  PENSTOCK_ASSIGN(const std::string path, WriteScratch(replay, pass + "-config.json", config));
  options.configs = {path};
  options.data = info.training.data_path;
  options.out = replay.scratch.path() + "/" + pass;
  options.device_memory = replay.command.device_memory;
  options.host_memory = replay.command.host_memory;
  // One more step shows the last one's update, and the search for the first non-finite value needs
  // a step after it.
  const uint64_t beyond = StepAfter(replay.command.to, replay.current.skip_steps);
  options.steps = StepAfter(beyond, replay.current.skip_steps);
  options.device = info.training.device == "cuda" ? DeviceChoice::kCuda : DeviceChoice::kCpu;
  options.replay =
      ReplayOptions{.run = replay.run.path(),
                    .snapshot = replay.origin.snapshot,
                    .commit = replay.origin.commit,
                    .other_dtype = fp32 && DTypeOf(replay.origin.identity) != DType::kFloat32};
  return options;
}

Status WasInterrupted() { return Error{ErrorCode::kCancelled, kWasInterrupted}; }

/// Sets the configuration of the next segment, with the changes of this one.
Status KeepChanges(const Replay& replay, const std::string& pass, size_t segment,
                   TrainOptions& options) {
  const std::vector<std::string> texts = ConfigTexts(options.changes);
  for (size_t i = 0; i < texts.size(); ++i) {
    PENSTOCK_ASSIGN(
        const std::string path,
        WriteScratch(replay, fmt::format("{}-change-{}-{}.json", pass, segment, i), texts[i]));
    options.configs.push_back(path);
  }
  return {};
}

Result<ReplayPass> Compute(const Replay& replay, bool fp32) {
  const std::string name = fp32 ? "fp32" : "run";
  PENSTOCK_ASSIGN(TrainOptions options, OptionsOf(replay, fp32, name));
  ReplayPass pass{.run = options.out};
  options.replay->record = &pass.record;
  for (size_t i = 0; i < replay.segments.size(); ++i) {
    const ReplaySegment& segment = replay.segments[i];
    const bool last = i + 1 == replay.segments.size();
    options.changes = segment.changes;
    if (options.replay->other_dtype) {
      std::erase_if(options.changes,
                    [](const RequestedChange& change) { return IsOfDtype(change.key); });
    }
    options.resume = i > 0;
    options.replay->commits = !last;
    options.replay->stop_after =
        last ? StepAfter(segment.last, replay.current.skip_steps) : segment.last;
    const Result<std::optional<RunSummary>> trained = Train(options);
    if (!trained.ok() && trained.error().code == ErrorCode::kNumeric) {
      pass.stopped = trained.error().message;
      break;
    }
    PENSTOCK_TRY(trained.status());
    if (*trained && (*trained)->loop.last_step < options.replay->stop_after)
      return WasInterrupted().error();
    PENSTOCK_TRY(KeepChanges(replay, name, i, options));
  }
  pass.record.CutAfter(replay.command.to);
  return pass;
}

/// Defects of the commit's weights, a line for each tensor.
Result<std::vector<std::string>> CommitFaults(const Origin& origin) {
  PENSTOCK_ASSIGN(const std::unique_ptr<zero::CommittedState> state, OpenFiles(*origin.info.state));
  PENSTOCK_TRY(state->Use(origin.commit));
  PENSTOCK_ASSIGN(const zero::CommitCheck check, state->Check(offload::kNoProgress));
  std::vector<std::string> faults;
  for (const zero::ValueFault& fault : check.values) faults.push_back(ToText(fault));
  return faults;
}

/// The rows that the run and a pass both have.
struct Compared {
  std::optional<RowComparison> rows;  ///< none in fp32, where rows differ
  bool equal() const { return !rows || rows->differing == 0; }
};

std::string RowsText(const Compared& compared) {
  if (!compared.rows) return "in fp32, whose rows are not compared with those of the run\n";
  const RowComparison& rows = *compared.rows;
  if (rows.differing == 0 && rows.compared == 0) return "rows: the run has none of these steps\n";
  if (rows.differing == 0) {
    return fmt::format("rows: {} equal those of the run, bit for bit\n", rows.compared);
  }
  std::string text = fmt::format("rows: {} differ from those of the run\n", rows.differing);
  for (const std::string& line : rows.differences) text += fmt::format("  {}\n", line);
  return text;
}

std::string ToText(const Replay& replay, const Compared& compared, const Conclusion& conclusion) {
  std::string text = fmt::format(
      "steps {} to {} of {}, from {}\n", replay.origin.step + 1, replay.command.to,
      replay.command.run,
      replay.origin.snapshot ? "its snapshot " + *replay.origin.snapshot : "its newest commit");
  text += RowsText(compared);
  text += fmt::format("conclusion: {}\n", conclusion.text);
  for (const std::string& line : conclusion.evidence) text += fmt::format("  {}\n", line);
  if (!conclusion.advice.empty()) text += fmt::format("advice: {}\n", conclusion.advice);
  return text;
}

/// The numeric failure that ended the run at the last of these steps, if any.
std::optional<std::string> StopOfRun(const Replay& replay, const std::vector<ReplayedStep>& steps) {
  const Result<std::optional<NumericsStop>> stop = ReadNumericsStop(replay.run);
  if (!stop.ok() || !*stop || steps.empty() || steps.back().step != (*stop)->step) return {};
  return (*stop)->line;
}

/// The evidence of the steps: as the run computed them, and in fp32 if that tells more.
Result<ReplayEvidence> Gather(const Replay& replay, const ReplayPass& pass) {
  const DType dtype = DTypeOf(replay.origin.identity);
  const uint64_t from = replay.origin.step;
  PENSTOCK_ASSIGN(std::vector<ReplayedStep> before,
                  StepsOfRows(replay.run, from - std::min<uint64_t>(from, kNeighbours), from));
  ReplayEvidence evidence{.dtype = dtype,
                          .vocabulary = pass.record.facts().vocabulary,
                          .from = from,
                          .steps = pass.record.steps(),
                          .before = std::move(before),
                          .reports = pass.record.reports(),
                          .stopped = pass.stopped,
                          .rate_key = pass.record.facts().rate_key};
  if (replay.command.fp32 && dtype != DType::kFloat32) {
    evidence.in_fp32 = std::move(evidence.steps);
    PENSTOCK_ASSIGN(evidence.steps, StepsOfRows(replay.run, replay.origin.step, replay.command.to));
    evidence.stopped = StopOfRun(replay, evidence.steps);
    if (evidence.steps.empty()) evidence.steps = *evidence.in_fp32;
  } else if (dtype == DType::kFloat16 && FirstFailure(evidence) != nullptr) {
    LogNotice("fp16 met values that are not finite: computing the same steps in fp32");
    PENSTOCK_ASSIGN(const ReplayPass fp32, Compute(replay, true));
    evidence.in_fp32 = fp32.record.steps();
  }
  if (IsSuspicious(evidence)) {
    PENSTOCK_ASSIGN(evidence.commit_faults, CommitFaults(replay.origin));
  }
  return evidence;
}

Result<ReplayOutcome> Run(const Replay& replay) {
  PENSTOCK_ASSIGN(const ReplayPass pass, Compute(replay, replay.command.fp32));
  Compared compared;
  if (!replay.command.fp32 || DTypeOf(replay.origin.identity) == DType::kFloat32) {
    PENSTOCK_ASSIGN(const Folder rows, Folder::Open(pass.run));
    PENSTOCK_ASSIGN(compared.rows,
                    CompareRows(replay.run, rows, replay.origin.step, replay.command.to));
  }
  PENSTOCK_ASSIGN(const ReplayEvidence evidence, Gather(replay, pass));
  return ReplayOutcome{.text = ToText(replay, compared, Conclude(evidence)),
                       .equal = compared.equal()};
}

Result<ScratchFolder> MakeScratch(const ReplayCommand& command, const RunInfo& info) {
  const std::string& parent = command.scratch.empty() ? command.run : command.scratch;
  Result<ScratchFolder> scratch = ScratchFolder::Make(parent, ReplayScratchName(info.run_uuid));
  if (scratch.ok() || command.scratch.empty()) return scratch;
  return Error{scratch.error().code, "--scratch: " + scratch.error().message};
}

/// Called before anything is locked: ranks of a launcher would wait for each other until they time
/// out.
Status CheckAlone() {
  PENSTOCK_ASSIGN(const bool several, comm::Job::HasSeveralRanks(ReadEnvironment));
  if (!several) return {};
  return Refused(
      "one process computes the steps of all ranks, and a launcher's variables speak of several "
      "(docs/ranks.md); start it without a launcher, or unset them");
}

}  // namespace

Result<ReplayOutcome> RunReplay(const ReplayCommand& command) {
  PENSTOCK_TRY(CheckAlone());
  PENSTOCK_ASSIGN(const Folder run, OpenRun(command.run));
  PENSTOCK_ASSIGN(const RunInfo info, ReadRunInfo(run));
  PENSTOCK_TRY(CheckIsOfTrain(info, command.run,
                              "its model and data are that program's, so its steps cannot be "
                              "computed again here"));
  PENSTOCK_ASSIGN(const RunLock lock, RunLock::TakeToRead(run));
  PENSTOCK_ASSIGN(const RunInfo current, ReadRunInfo(run));
  PENSTOCK_TRY(CheckWhole(current, command.run));
  PENSTOCK_ASSIGN(const Origin origin, FindOrigin(command, run));
  PENSTOCK_TRY(CheckIsOfRun(origin, current, run));
  PENSTOCK_TRY(CheckLast(command, origin, current));
  // From here on the first Ctrl-C at any moment ends in an orderly way.
  { const Interrupt taken(kReplayInterruptNotice); }
  PENSTOCK_ASSIGN(const ScratchFolder scratch, MakeScratch(command, current));
  return Run({.command = command,
              .run = run,
              .current = current,
              .origin = origin,
              .scratch = scratch,
              .segments = ReplaySegments(current.changes, origin.step, command.to)});
}

}  // namespace penstock::train
