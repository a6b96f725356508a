#include "train/trainer/start_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "run/identity/run_identity.h"
#include "run/leftovers.h"
#include "run/moved_run.h"
#include "train/process/log.h"
#include "train/trainer/alike.h"

namespace penstock::train {
namespace {

Result<RunFolder> OpenRunToResume(const std::string& run) {
  Result<RunFolder> folder = RunFolder::Open(run);
  if (folder.ok() || folder.error().code != ErrorCode::kNotFound) return folder;
  std::error_code ignored;
  return MakeError(ErrorCode::kInvalidArgument, "--resume: there is no commit in {}: {}", run,
                   std::filesystem::exists(run, ignored)
                       ? folder.error().message
                       : "there is no such folder; start a new run without --resume");
}

/// Refuses a run of the package, whatever is asked of it. What is no run is for others to see.
Status CheckHasOwnLoop(const TrainOptions& given) {
  const Result<RunInfo> info = ReadRunInfo(given.out);
  if (!info.ok()) return {};
  std::string instead = fmt::format("its own program resumes it, with run=\"{}\"", given.out);
  if (!given.changes.empty()) {
    instead += fmt::format("; {} and all other numbers of its steps are that program's to change",
                           given.changes.front().key);
  }
  return CheckIsOfTrain(*info, given.out, instead);
}

std::string ToText(const Beginning& beginning) {
  return nlohmann::json{{"run", beginning.run},
                        {"state", beginning.state},
                        {"session", beginning.session_number},
                        {"copy", beginning.is_copy}}
      .dump();
}
/// Parses a text of rank 0.
Beginning BeginningFrom(const std::string& text) {
  const auto json = nlohmann::json::parse(text);
  return {.run = json.at("run"),
          .state = json.at("state"),
          .session_number = json.at("session"),
          .is_copy = json.at("copy")};
}

/// Creates RUN, or opens it to resume, on rank 0, and sets `folder`.
Result<Beginning> Begin(const TrainOptions& given, std::optional<RunFolder>& folder) {
  PENSTOCK_TRY(CheckHasOwnLoop(given));
  PENSTOCK_ASSIGN(RunFolder opened,
                  given.resumes() ? OpenRunToResume(given.out) : RunFolder::Create(given.out));
  folder.emplace(std::move(opened));
  Beginning beginning{.run = folder->path()};
  if (given.resumes()) {
    const Result<RunInfo> info = ReadRunInfo(folder->folder());
    const auto original = info.ok() ? OriginalOf(folder->folder(), *info) : std::nullopt;
    beginning.is_copy = original.has_value();
    const bool in_original =
        original && info->state && FilesWithin({*info->state}, folder->folder()).empty();
    if (in_original && !given.resume_from) LogNotice(CopyNotice(folder->folder(), *original));
  }
  PENSTOCK_ASSIGN(beginning.state, offload::RandomUuid());
  PENSTOCK_ASSIGN(const offload::Uuid number, offload::RandomUuid());
  std::memcpy(&beginning.session_number, number.data(), sizeof beginning.session_number);
  return beginning;
}

}  // namespace

Result<Beginning> BeginTogether(const TrainOptions& given, Ranks& ranks,
                                std::optional<RunFolder>& folder) {
  Result<Beginning> mine = ranks.first() ? Begin(given, folder) : Beginning();
  PENSTOCK_TRY(ranks.Agree(mine.status()));
  PENSTOCK_ASSIGN(const std::string text, ranks.FromFirst(ToText(*mine)));
  return BeginningFrom(text);
}

Result<StartPlan> PlanNew(const TrainOptions& given, ModelFamilies families, Ranks& ranks) {
  TrainOptions options = given;
  options.seed = options.seed.value_or(0);
  options.data_order = options.data_order.value_or(DataOrder::kShuffle);
  PENSTOCK_ASSIGN(TrainJob job, ranks.Agree(PrepareJob(options, nullptr, families, ranks.place())));
  StartPlan plan{.options = std::move(options), .job = std::move(job)};
  return plan;
}

bool StartPlan::IsDone() const {
  const bool moves = from && (from->replaced || from->is_copy);
  return resumes() && !moves && from->train.step >= job.last_step;
}

RunInfo StartPlan::Info(const StateFiles& state) const {
  return {.program = PENSTOCK_VERSION,
          .run_uuid = resumes() ? from->current().run_uuid : state.uuid,
          .place = beginning.run,
          .state = state,
          .changes = changes,
          .skip_steps = skips,
          .training = {.model_json = job.model.config_json,
                       .data_path = job.data_path,
                       .data_order = ToString(*options.data_order),
                       .seed = *options.seed,
                       .sequence_length = job.shape.sequence,
                       .device = device::ToString(job.device)}};
}

std::string StartPlan::Identity(std::string arithmetic) const {
  return ToJson(RunIdentity{.model = job.model.description->Identity(),
                            .data_fingerprint = job.data_fingerprint,
                            .data_order = ToString(*options.data_order),
                            .seed = *options.seed,
                            .sequence_length = job.shape.sequence,
                            .config = job.config,
                            .ranks = job.world.size,
                            .arithmetic = std::move(arithmetic)});
}

std::vector<std::string> StartPlan::Notices(const std::string& now) const {
  std::vector<std::string> notices = {fmt::format("resuming after step {}", from->train.step)};
  for (const RunChange& change : changed) {
    notices.push_back(fmt::format("changed from step {} on: {}", change.step + 1, ToText(change)));
  }
  const size_t ranks = from->info.state->ranks.size();
  if (job.config.gradient_order == config::GradientOrder::kRank && ranks != job.world.size) {
    notices.push_back(
        fmt::format("ranks in the run: {}, and here: {}; with penstock.gradient_order \"rank\" the "
                    "last bits differ from here on",
                    ranks, job.world.size));
  }
  if (from->info.program != PENSTOCK_VERSION) {
    notices.push_back(
        fmt::format("the run was begun by penstock {}, and this is {}: the last bits may "
                    "differ from here on",
                    from->info.program, PENSTOCK_VERSION));
  }
  const std::string before = ArithmeticOf(from->identity);
  if (before != now) {
    notices.push_back(
        fmt::format("the run computed with {}, and here it computes with {}: the last bits may "
                    "differ from here on",
                    before, now));
  }
  return notices;
}

void StartPlan::SetChanges(const std::vector<RunChange>& now) {
  // If the batch changes, the number of samples no longer follows from the step.
  keeps_consumed_samples =
      from->consumed_samples.has_value() ||
      std::ranges::any_of(now, [](const RunChange& change) { return IsOfBatch(change.key); });
  changes = CommittedChanges(from->info.changes, from->train.step);
  changes.insert(changes.end(), now.begin(), now.end());
}

Status CheckAllAlike(const StartPlan& plan, Ranks& ranks) {
  if (ranks.alone()) return {};
  const TrainJob& job = plan.job;
  NamedValues values = ValuesToBeAlike(plan.Identity(""), job.config, job.last_step);
  if (plan.from) {
    const offload::CommitName commit = plan.from->state->commit();
    values.emplace_back("the commit to resume",
                        fmt::format("step {} of session {:x} of state {}", commit.step,
                                    commit.session, plan.from->state->uuid()));
  } else {
    PENSTOCK_ASSIGN(std::string weights, ranks.Agree(RecogniseWeights(job.spec, job.weights)));
    values.emplace_back("weights", std::move(weights));
  }
  PENSTOCK_TRY(ranks.CheckAlike(values));
  ranks.job().SetTimeouts({.heartbeat = std::chrono::seconds(job.config.heartbeat_seconds),
                           .operation = std::chrono::seconds(job.config.comm_timeout_seconds)});
  return {};
}

TrainOptions CompleteFrom(const RunInfo& info, TrainOptions options) {
  const DataOrder order = info.training.data_order == ToString(DataOrder::kSequential)
                              ? DataOrder::kSequential
                              : DataOrder::kShuffle;
  options.seed = options.seed.value_or(info.training.seed);
  options.data_order = options.data_order.value_or(order);
  options.sequence_length = options.sequence_length.value_or(info.training.sequence_length);
  return options;
}

Result<uint64_t> ConsumedSamples(const StartPlan& plan) {
  const ResumePoint& from = *plan.from;
  const config::Config& config = plan.job.config;
  const uint64_t ranks = plan.job.world.size;
  const uint64_t consumed =
      from.consumed_samples.value_or(from.train.step * BatchOf(from.identity));
  // A changed batch begins where the previous one ended.
  if (!config.rampup || consumed % (config.micro_batch_size * ranks) == 0) return consumed;
  return MakeError(ErrorCode::kCorruption,
                   "--resume: the commit of step {} says that {} samples were taken, which are no "
                   "whole micro-batches of {} ranks; resume from a snapshot, or start a new run",
                   from.train.step, consumed, ranks);
}

}  // namespace penstock::train
