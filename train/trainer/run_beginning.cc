#include "train/trainer/run_beginning.h"

#include <fmt/format.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "run/leftovers.h"
#include "run/moved_run.h"
#include "train/process/log.h"
#include "train/trainer/alike.h"
#include "train/trainer/run_facts.h"

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
Beginning FromText(const std::string& text) {
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
  return FromText(text);
}

Status CheckAllAlike(const TrainOptions& options, const TrainJob& job, const ResumePoint* from,
                     Ranks& ranks) {
  if (ranks.alone()) return {};
  NamedValues values = ValuesToBeAlike(IdentityOf(options, job, ""), job.config, job.last_step);
  if (from != nullptr) {
    const offload::CommitName commit = from->state->commit();
    values.emplace_back("the commit to resume",
                        fmt::format("step {} of session {:x} of state {}", commit.step,
                                    commit.session, from->state->uuid()));
  } else {
    PENSTOCK_ASSIGN(std::string weights, ranks.Agree(RecogniseWeights(job.spec, job.weights)));
    values.emplace_back("weights", std::move(weights));
  }
  PENSTOCK_TRY(ranks.CheckAlike(values));
  ranks.job().SetTimeouts({.heartbeat = std::chrono::seconds(job.config.heartbeat_seconds),
                           .operation = std::chrono::seconds(job.config.comm_timeout_seconds)});
  return {};
}

Status Complete(PreparedRun& run, const std::function<Result<MetricsWriter>(RunFolder&)>& rows) {
  run.identity = IdentityOf(run.options, run.job, run.machine.operators->arithmetic());
  if (!run.folder) return {};
  PENSTOCK_ASSIGN(run.rows, rows(*run.folder));
  return {};
}

}  // namespace penstock::train
