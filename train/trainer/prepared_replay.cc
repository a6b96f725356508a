#include "train/trainer/prepared_replay.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/file_system.h"
#include "offload/state_copy.h"
#include "offload/state_format.h"
#include "run/identity/replay_plan.h"
#include "run/identity/run_identity.h"
#include "run/snapshot.h"
#include "train/process/log.h"
#include "train/trainer/run_facts.h"
#include "train/weights/committed_model.h"
#include "zero/states/tile_fill.h"

namespace penstock::train {
namespace {

constexpr const char* kNotTheSame =
    "a replay computes bit for bit what the run computed, and this does not";

/// The folder with the rows up to the commit: of the run, or of its snapshot.
Result<Folder> FolderOfRows(const Folder& of, const ReplayOptions& replay) {
  return replay.snapshot ? OpenSnapshot(of, *replay.snapshot) : of.Reopen();
}

/// Checks that the job computes what the commit was computed with.
Status CheckNumbers(const ResumePoint& from, const TrainOptions& options, const TrainJob& job) {
  std::vector<KeyDifference> differences =
      KeyDifferences(from.identity, IdentityOf(options, job, ""));
  std::erase_if(differences, [&](const KeyDifference& difference) {
    return (options.replay->other_dtype && IsOfDtype(difference.key)) ||
           std::ranges::any_of(options.changes, [&](const RequestedChange& change) {
             return Covers(change.key, difference.key) ||
                    (IsOfBatch(change.key) && IsOfBatch(difference.key));
           });
  });
  if (differences.empty()) return {};
  std::vector<std::string> texts;
  for (const KeyDifference& difference : differences) texts.push_back(ToText(difference));
  const bool data = std::ranges::any_of(differences, [](const KeyDifference& difference) {
    return difference.key.starts_with("data.");
  });
  return MakeError(ErrorCode::kInvalidArgument,
                   "replay: step {} of {} was computed with {}: {}; {}", from.train.step,
                   options.replay->run, data ? "other data" : "other numbers",
                   fmt::join(texts, "; "),
                   data ? fmt::format("put back what {} held", job.data_path) : kNotTheSame);
}

/// A replay in another dtype uses other instructions, and is not checked.
Status CheckArithmetic(const ResumePoint& from, const ReplayOptions& replay,
                       const std::string& now) {
  const std::string before = ArithmeticOf(from.identity);
  if (replay.other_dtype || before == now) return {};
  return MakeError(
      ErrorCode::kInvalidArgument,
      "replay: {} computed with {}, but here it would be {}: {}; replay it where it was "
      "trained, or in fp32 (--dtype fp32), without a comparison of rows",
      replay.run, before, now, kNotTheSame);
}

Status CheckSpace(const TrainJob& job) {
  const Bytes need = offload::StateFileBytes(job.layout(), /*slots=*/1, /*paths=*/1);
  for (const std::string& folder : job.config.nvme_paths) {
    PENSTOCK_ASSIGN(const Bytes free, FreeSpace(folder));
    if (free >= need + offload::kFreeBesideCopy) continue;
    return MakeError(
        ErrorCode::kOutOfSpace,
        "no space in {}: the state of the replay takes {}, {} must stay free, and {} are "
        "free; give --scratch a folder on another drive",
        folder, ToString(need), ToString(offload::kFreeBesideCopy), ToString(free));
  }
  return {};
}

Status Fill(const ResumePoint& from, bool other_dtype, zero::Session& session,
            const Interrupt& interrupt) {
  const offload::ModelLayout& model = session.layout().model;
  const bool fits = other_dtype ? model.modules == from.state->model().modules
                                : model.HasTensorsOf(from.state->model());
  if (!fits) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "replay: the commit in {} has other tensors or optimizer states than this "
                     "program uses for the model; replay it with the version that wrote it",
                     from.info.state->first());
  }
  PENSTOCK_ASSIGN(const zero::TileFill fill, zero::FillFromState(session.layout(), *from.state));
  const zero::TileFill until_stopped = [&](offload::TileId tile, std::span<std::byte> weight,
                                           std::span<std::byte> record) -> Status {
    if (interrupt.requested()) {
      return MakeError(ErrorCode::kCancelled, "interrupted while the commit was read");
    }
    return fill(tile, weight, record);
  };
  return session.Fill(until_stopped, from.train);
}

/// The changes of the commit, and those with which the replay begins.
std::vector<RunChange> AllChanges(const ResumePoint& from, const TrainOptions& options) {
  std::vector<RunChange> all = CommittedChanges(from.info.changes, from.train.step);
  for (const RequestedChange& change : options.changes) {
    all.push_back(
        {.step = from.train.step, .key = change.key, .before = "null", .after = change.value});
  }
  return all;
}

}  // namespace

Result<PreparedRun> PrepareReplay(const TrainOptions& given, ModelFamilies families, Ranks& ranks) {
  const ReplayOptions& replay = *given.replay;
  if (!ranks.alone()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "replay: one process computes the steps of all ranks; start it without a "
                     "launcher");
  }
  PENSTOCK_ASSIGN(const Folder of, OpenRun(replay.run));
  PENSTOCK_ASSIGN(const RunInfo current, ReadRunInfo(of));
  PENSTOCK_ASSIGN(ResumePoint from,
                  OpenResumePoint(of, replay.snapshot, LogNotice, offload::StateLock::kShared));
  PENSTOCK_TRY(TakeCommit(from, of, replay.commit));
  PENSTOCK_TRY(CheckInfo(from.info, *from.state, families));
  // Without loss scaling there is no scale to resume with.
  if (replay.other_dtype) from.train.loss_scale.reset();
  TrainOptions options = CompleteFrom(from.info, given);
  PENSTOCK_ASSIGN(TrainJob job, PrepareJob(options, &from, families, ranks.place()));
  PENSTOCK_TRY(CheckNumbers(from, options, job));
  PENSTOCK_ASSIGN(const uint64_t consumed, ConsumedSamples(from, job));
  PENSTOCK_TRY(CheckSpace(job));
  auto interrupt = std::make_unique<Interrupt>(kReplayInterruptNotice);
  PENSTOCK_ASSIGN(RunFolder folder, RunFolder::Create(options.out));
  PENSTOCK_ASSIGN(const offload::Uuid uuid, offload::RandomUuid());
  PENSTOCK_ASSIGN(const StatePlan state, PlanNewState(job, folder.path(), uuid, ranks));
  RunInfo info = InfoOf(options, job, folder.path(), state.files, state.files.uuid);
  info.changes = AllChanges(from, options);
  info.skip_steps = current.skip_steps;
  PENSTOCK_TRY(folder.WriteInfo(info));
  uint64_t session_number = 0;
  std::memcpy(&session_number, uuid.data(), sizeof session_number);
  PENSTOCK_ASSIGN(Machine machine, CreateMachine(options, job, state, ranks, session_number));
  PENSTOCK_TRY(CheckArithmetic(from, replay, machine.operators->arithmetic()));
  PENSTOCK_TRY(Fill(from, replay.other_dtype, *machine.session, *interrupt));
  PENSTOCK_ASSIGN(const Folder rows, FolderOfRows(of, replay));
  PENSTOCK_TRY(CopyRows(rows, folder.folder(), from.train.step));
  PENSTOCK_ASSIGN(MetricsWriter writer, folder.ResumeRows(from.train.step, from.row, LogNotice));
  from.state.reset();
  PreparedRun run{.folder = std::move(folder),
                  .options = std::move(options),
                  .job = std::move(job),
                  .interrupt = std::move(interrupt),
                  .info = std::move(info),
                  .machine = std::move(machine)};
  run.rows = std::move(writer);
  run.identity = IdentityOf(run.options, run.job, run.machine.operators->arithmetic());
  run.consumed_samples = consumed;
  run.keeps_consumed_samples = ChangesBatch(from, run.options.changes);
  return run;
}

}  // namespace penstock::train
