// StartPlan of a replay.
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/file_system.h"
#include "offload/state_copy.h"
#include "offload/state_format.h"
#include "run/identity/replay_plan.h"
#include "run/identity/run_identity.h"
#include "train/process/log.h"
#include "train/trainer/start_plan.h"
#include "train/weights/committed_model.h"

namespace penstock::train {
namespace {

constexpr const char* kNotTheSame =
    "a replay computes bit for bit what the run computed, and this does not";

/// Checks that the job computes what the commit was computed with.
Status CheckNumbers(const StartPlan& plan) {
  const ResumePoint& from = *plan.from;
  const TrainOptions& options = plan.options;
  std::vector<KeyDifference> differences = KeyDifferences(from.identity, plan.Identity(""));
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
                   data ? fmt::format("put back what {} held", plan.job.data_path) : kNotTheSame);
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

std::vector<RunChange> ChangesOf(const StartPlan& plan) {
  std::vector<RunChange> changes;
  for (const RequestedChange& change : plan.options.changes) {
    changes.push_back({.step = plan.from->train.step,
                       .key = change.key,
                       .before = "null",
                       .after = change.value});
  }
  return changes;
}

}  // namespace

Result<StartPlan> PlanReplay(const TrainOptions& given, ModelFamilies families, Ranks& ranks) {
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
  StartPlan plan{.options = std::move(options), .job = std::move(job), .from = std::move(from)};
  PENSTOCK_TRY(CheckNumbers(plan));
  plan.SetChanges(ChangesOf(plan));
  plan.skips = current.skip_steps;
  PENSTOCK_ASSIGN(plan.consumed_samples, ConsumedSamples(plan));
  PENSTOCK_TRY(CheckSpace(plan.job));
  return plan;
}

Status CheckArithmetic(const StartPlan& replay, const std::string& now) {
  const std::string before = ArithmeticOf(replay.from->identity);
  // A replay in another dtype uses other instructions, and is not checked.
  if (replay.options.replay->other_dtype || before == now) return {};
  return MakeError(
      ErrorCode::kInvalidArgument,
      "replay: {} computed with {}, but here it would be {}: {}; replay it where it was "
      "trained, or in fp32 (--dtype fp32), without a comparison of rows",
      replay.options.replay->run, before, now, kNotTheSame);
}

}  // namespace penstock::train
