#include "run/run_info.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/files.h"
#include "base/strict_json.h"
#include "run/snapshot.h"

namespace penstock::train {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

/// The key that only the package's run.json has, with the version of its format.
constexpr const char* kPackageKey = "penstock_run";
constexpr int kPackageVersion = 1;

/// Of run.json. Earlier programs refuse one that names the files of several ranks.
constexpr int kOneRankVersion = 1;
constexpr int kRanksVersion = 2;

/// What JSON's reader would round or wrap is no number that a run wrote.
Result<uint64_t> WholeOf(const nlohmann::json& json, const char* key, const Folder& run) {
  const nlohmann::json& value = json.at(key);
  if (value.is_number_unsigned()) return value.get<uint64_t>();
  return DamagedInfo(
      run, fmt::format("{} is {}, not a whole number of at most 64 bits", key, Excerpt(value)));
}

/// What can be read of run.json when it is an object of this version.
Result<RunInfo> ParseInfo(const nlohmann::json& json, const Folder& run) {
  RunInfo info;
  info.version = json.at("program").get<std::string>();
  PENSTOCK_ASSIGN(info.state, StateFilesFrom(json, run));
  // Runs that were begun before it was kept: their snapshots have the state's UUID, unless the
  // state was moved since.
  info.run_uuid = json.value("run_uuid", info.state.uuid);
  if (info.run_uuid.empty()) return DamagedInfo(run, "its run_uuid is empty");
  for (const auto& entry : json.value("leftovers", nlohmann::json::array())) {
    PENSTOCK_ASSIGN(StateFiles state, StateFilesFrom(entry, run));
    info.leftovers.push_back(std::move(state));
  }
  if (json.contains("rows_from")) {
    info.rows_from = json["rows_from"].get<std::string>();
    const Status name = CheckSnapshotName(*info.rows_from);
    if (!name.ok()) return DamagedInfo(run, name.error().message);
  }
  PENSTOCK_ASSIGN(info.seed, WholeOf(json, "seed", run));
  info.device = json.at("device").get<std::string>();
  PENSTOCK_ASSIGN(info.sequence_length, WholeOf(json, "sequence_length", run));
  info.data_path = json.at("data").at("path").get<std::string>();
  info.data_order = json.at("data").at("order").get<std::string>();
  info.model_json = json.at("model").get<std::string>();
  for (const auto& entry : json.value("changes", nlohmann::json::array())) {
    PENSTOCK_ASSIGN(const uint64_t step, WholeOf(entry, "step", run));
    info.changes.push_back(ChangeFrom(step, entry));
  }
  for (const auto& entry : json.value("skip_steps", nlohmann::json::array())) {
    PENSTOCK_ASSIGN(const uint64_t first, WholeOf(entry, "first", run));
    PENSTOCK_ASSIGN(const uint64_t last, WholeOf(entry, "last", run));
    if (first == 0 || last < first || last > kLastStepNumber) {
      return DamagedInfo(run, "no run passes over steps " + ToText(StepRange{first, last}));
    }
    info.skips.push_back({first, last});
  }
  if (json.contains("automatic")) {
    PENSTOCK_ASSIGN(info.automatic, WholeOf(json, "automatic", run));
  }
  return info;
}

Error UnknownVersion(const Folder& run, const nlohmann::json& version) {
  return MakeError(ErrorCode::kCorruption,
                   "{}: version {} is not known to this program; use the one that wrote it",
                   run.PathOf(kInfoName), Excerpt(version));
}

/// Where a file of a run of the package is now. One that was moved or copied has its files in its
/// own folders, if anywhere.
std::string Found(const std::string& path, const RunInfo& info, const Folder& run, bool moved) {
  std::error_code ignored;
  if (!moved && fs::exists(path, ignored)) return path;
  const fs::path name = fs::path(path).filename();
  if (fs::exists(run.path() / name, ignored)) return run.path() / name;
  for (const std::string& folder : info.folders) {
    if (!moved && fs::exists(folder / name, ignored)) return folder / name;
  }
  return path;
}

/// The run.json of the package (docs/pytorch_runs.md).
Result<RunInfo> ParsePackageInfo(const nlohmann::json& json, const Folder& run) {
  if (json.at(kPackageKey) != kPackageVersion) return UnknownVersion(run, json.at(kPackageKey));
  RunInfo info;
  const auto kind = json.at("kind").get<std::string>();
  if (kind != "optimizer" && kind != "module") {
    return DamagedInfo(run, fmt::format("its kind is {}", Excerpt(json.at("kind"))));
  }
  info.kind = kind == "module" ? RunKind::kModule : RunKind::kOptimizer;
  info.run_uuid = json.at("id").get<std::string>();
  if (info.run_uuid.empty()) return DamagedInfo(run, "its id is empty");
  info.folders = json.at("folders").get<std::vector<std::string>>();
  const nlohmann::json& state = json.at("state");
  if (state.is_null()) {
    return MakeError(ErrorCode::kNotFound, "{} has no commit yet", run.path());
  }
  PENSTOCK_ASSIGN(
      info.state,
      StateFilesFrom({{"state_uuid", state.at("uuid")}, {"state_paths", state.at("paths")}}, run));
  const bool moved = json.value("place", run.path()) != run.path();
  for (std::string& path : info.state.ranks.front().paths) path = Found(path, info, run, moved);
  return info;
}

}  // namespace

Status WriteRunInfo(const Folder& run, const RunInfo& info) {
  PENSTOCK_CHECK(info.kind == RunKind::kTrain);
  Json leftovers = Json::array();
  bool one_rank = info.state.ranks.size() == 1;
  for (const StateFiles& state : info.leftovers) {
    PENSTOCK_ASSIGN(Json files, ToJson(state, run));
    leftovers.push_back(std::move(files));
    one_rank = one_rank && state.ranks.size() == 1;
  }
  PENSTOCK_ASSIGN(const Json state, ToJson(info.state, run));
  Json json = {{"version", one_rank ? kOneRankVersion : kRanksVersion},
               {"program", info.version},
               {"run_uuid", info.run_uuid}};
  json.update(state);
  json.update({
      {"leftovers", leftovers},
      {"seed", info.seed},
      {"device", info.device},
      {"sequence_length", info.sequence_length},
      {"data", {{"path", info.data_path}, {"order", info.data_order}}},
      {"model", info.model_json},
  });
  if (info.rows_from) json["rows_from"] = *info.rows_from;
  for (const RunChange& change : info.changes) json["changes"].push_back(ToJson(change));
  for (const StepRange& range : info.skips) {
    json["skip_steps"].push_back({{"first", range.first}, {"last", range.last}});
  }
  if (info.automatic) json["automatic"] = *info.automatic;
  return WriteTextFile(run, kInfoName, json.dump(2) + "\n");
}

Result<RunInfo> ParseRunInfo(const std::string& text, const Folder& run) {
  PENSTOCK_ASSIGN(const nlohmann::json json,
                  ParseJsonObject(text, run.PathOf(kInfoName), ErrorCode::kCorruption));
  try {
    if (json.contains(kPackageKey)) return ParsePackageInfo(json, run);
    const nlohmann::json& version = json.at("version");
    if (version != kOneRankVersion && version != kRanksVersion) {
      return UnknownVersion(run, version);
    }
    return ParseInfo(json, run);
  } catch (const nlohmann::json::exception& error) {
    return DamagedInfo(run, JsonReason(error));
  }
}

const char* ToString(RunKind kind) {
  switch (kind) {
    case RunKind::kTrain:
      return "penstock train";
    case RunKind::kOptimizer:
      return "the Python package (optimizer)";
    case RunKind::kModule:
      return "the Python package (module)";
  }
  return "?";
}

Status CheckIsOfTrain(const RunInfo& info, const std::string& run, const std::string& instead) {
  if (info.kind == RunKind::kTrain) return {};
  return MakeError(ErrorCode::kInvalidArgument, "{} is a run of {}: {}", run, ToString(info.kind),
                   instead);
}

}  // namespace penstock::train
