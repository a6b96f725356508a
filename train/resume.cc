#include "train/resume.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "offload/state_removal.h"
#include "train/log.h"

namespace penstock::train {
namespace {

namespace fs = std::filesystem;

Error NothingToResume(const std::string& run, const std::string& why) {
  return MakeError(ErrorCode::kInvalidArgument,
                   "--resume: there is no commit in {}: {}; start a new run without --resume", run,
                   why);
}

bool AllThere(const std::vector<std::string>& paths) {
  std::error_code ignored;
  return std::ranges::all_of(paths, [&](const auto& path) { return fs::exists(path, ignored); });
}

/// Splits what the training loop committed: the run's identity, and the row of the step.
Status ReadRunJson(ResumePoint* point) {
  try {
    const auto json = nlohmann::ordered_json::parse(point->train.run_json);
    point->identity = json.at("run").dump();
    if (json.contains("row")) point->row = json["row"].dump();
    return {};
  } catch (const nlohmann::json::exception& error) {
    return MakeError(ErrorCode::kCorruption,
                     "{}: what the commit of step {} says of its run cannot be read: {}",
                     point->info.state.paths.front(), point->train.step, error.what());
  }
}

/// Removes a state's files. What does not belong to it, or is in use, stays, with a notice.
void RemoveState(const StateFiles& state) {
  for (const std::string& path : state.paths) {
    const Result<offload::RemovableState> file = offload::RemovableState::Open(path, state.uuid);
    const Status removed = file.ok() ? file->Remove() : Status(file.error());
    if (removed.ok() || removed.error().code == ErrorCode::kNotFound) continue;
    LogNotice(fmt::format("a state that was moved is left behind: {}", removed.error().message));
  }
}

Status RemoveLeftovers(RunInfo info, const RunFolder& folder) {
  for (const StateFiles& state : info.leftovers) RemoveState(state);
  info.leftovers.clear();
  return folder.WriteInfo(info);
}

}  // namespace

Result<ResumePoint> OpenResumePoint(const std::string& run) {
  ResumePoint point;
  Result<RunInfo> info = ReadRunInfo(run);
  if (!info.ok() && info.error().code == ErrorCode::kNotFound) {
    return NothingToResume(run, "it has no run.json");
  }
  PENSTOCK_TRY(info.status());
  point.info = *std::move(info);
  const std::vector<std::string>& paths = point.info.state.paths;
  auto state = zero::CommittedState::Open(paths, /*exclusive=*/true);
  if (!state.ok() && state.error().code == ErrorCode::kNotFound && AllThere(paths)) {
    return NothingToResume(run, state.error().message);
  }
  PENSTOCK_TRY(state.status());
  point.state = *std::move(state);
  point.train = point.state->train_state();
  PENSTOCK_TRY(ReadRunJson(&point));
  return point;
}

Status CheckIdentity(const ResumePoint& from, const std::string& now) {
  const std::vector<std::string> differences = Differences(from.identity, now);
  if (differences.empty()) return {};
  return MakeError(
      ErrorCode::kInvalidArgument,
      "--resume: step {} was committed by a training with other numbers: {}; give what "
      "the run was started with, or start a new one",
      from.train.step, fmt::join(differences, "; "));
}

bool FitsInPlace(const ResumePoint& from, const offload::Layout& layout, bool durable,
                 const std::vector<std::string>& folders) {
  const auto holds = [](const std::string& folder, const std::string& file) {
    std::error_code ignored;
    return fs::equivalent(fs::path(file).parent_path(), folder, ignored);
  };
  return from.state->durable() == durable && from.state->layout() == layout &&
         std::ranges::equal(folders, from.info.state.paths, holds);
}

Status MoveState(ResumePoint& from, zero::Engine& engine, const RunFolder& folder, RunInfo info,
                 const std::function<bool()>& stop_requested) {
  RunInfo moving = from.info;
  moving.leftovers.push_back(info.state);
  PENSTOCK_TRY(folder.WriteInfo(moving));
  const zero::TileFill fill = zero::FillFromState(engine.layout(), *from.state);
  PENSTOCK_TRY(engine.FillTiles([&](offload::TileId tile, std::span<std::byte> weight,
                                    std::span<std::byte> record) -> Status {
    if (stop_requested()) {
      return MakeError(ErrorCode::kCancelled,
                       "interrupted while the state was moved: the run is as it was");
    }
    return fill(tile, weight, record);
  }));
  PENSTOCK_TRY(engine.Commit(from.train));
  info.leftovers.push_back(from.info.state);
  PENSTOCK_TRY(folder.WriteInfo(info));
  from.state.reset();
  return RemoveLeftovers(std::move(info), folder);
}

Status RemoveLeftovers(ResumePoint& from, const RunFolder& folder) {
  if (from.info.leftovers.empty()) return {};
  PENSTOCK_TRY(RemoveLeftovers(from.info, folder));
  from.info.leftovers.clear();
  return {};
}

}  // namespace penstock::train
