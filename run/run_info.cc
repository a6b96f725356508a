#include "run/run_info.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/files.h"
#include "base/strict_json.h"
#include "run/json_fields.h"
#include "run/older_run_info.h"
#include "run/run_info_fields.h"

namespace penstock::train {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kVersion = 3;
/// Of penstock train: 2 if several ranks have files.
constexpr int kOlderVersions[] = {1, 2};

const char* KeyOf(RunKind kind) {
  switch (kind) {
    case RunKind::kTrain:
      return "train";
    case RunKind::kOptimizer:
      return "optimizer";
    case RunKind::kModule:
      return "module";
  }
  return "?";
}

Result<RunKind> KindFrom(const std::string& key, const Folder& run) {
  for (const RunKind kind : {RunKind::kTrain, RunKind::kOptimizer, RunKind::kModule}) {
    if (key == KeyOf(kind)) return kind;
  }
  return DamagedInfo(run, fmt::format("its kind is \"{}\"", key));
}

Json ToJson(const RunTraining& training) {
  return {{"model", training.model_json},
          {"data", {{"path", training.data_path}, {"order", training.data_order}}},
          {"seed", training.seed},
          {"sequence_length", training.sequence_length},
          {"device", training.device}};
}

Result<Json> ToJson(const RunInfo& info, const Folder& run) {
  Json json = {{"version", kVersion},
               {"program", info.program},
               {"kind", KeyOf(info.kind)},
               {"run_uuid", info.run_uuid},
               {"place", info.place}};
  if (info.temporary) json["temporary"] = true;
  json["state"] = nullptr;
  if (info.state) {
    PENSTOCK_ASSIGN(json["state"], ToJson(*info.state, run));
  }
  json["leftovers"] = Json::array();
  for (const StateFiles& state : info.leftovers) {
    PENSTOCK_ASSIGN(Json files, ToJson(state, run));
    json["leftovers"].push_back(std::move(files));
  }
  if (info.rows_from) json["rows_from"] = *info.rows_from;
  if (!info.made_files.empty()) json["made_files"] = info.made_files;
  if (info.copying) json["copying"] = *info.copying;
  if (info.automatic) json["automatic"] = *info.automatic;
  for (const RunChange& change : info.changes) json["changes"].push_back(ToJson(change));
  for (const StepRange& range : info.skip_steps) {
    json["skip_steps"].push_back({{"first", range.first}, {"last", range.last}});
  }
  json["training"] = info.kind == RunKind::kTrain ? ToJson(info.training) : Json::object();
  return json;
}

Result<RunTraining> CurrentTraining(const JsonFields& fields, RunKind kind) {
  PENSTOCK_ASSIGN(const JsonFields training, fields.Object("training"));
  if (kind != RunKind::kTrain) {
    PENSTOCK_TRY(training.CheckKeys({}));
    return RunTraining();
  }
  PENSTOCK_TRY(training.CheckKeys({"model", "data", "seed", "sequence_length", "device"}));
  PENSTOCK_ASSIGN(const JsonFields data, training.Object("data"));
  PENSTOCK_TRY(data.CheckKeys({"path", "order"}));
  return TrainingFrom(training);
}

Result<RunInfo> ParseCurrent(const JsonFields& fields, const Folder& run) {
  PENSTOCK_TRY(fields.CheckKeys({"version", "program", "kind", "run_uuid", "place", "temporary",
                                 "state", "leftovers", "rows_from", "made_files", "copying",
                                 "automatic", "changes", "skip_steps", "training"}));
  RunInfo info;
  PENSTOCK_ASSIGN(info.program, fields.Text("program"));
  PENSTOCK_ASSIGN(const std::string kind, fields.Text("kind"));
  PENSTOCK_ASSIGN(info.kind, KindFrom(kind, run));
  PENSTOCK_ASSIGN(info.run_uuid, fields.Name("run_uuid"));
  PENSTOCK_ASSIGN(info.place, fields.Name("place"));
  if (!std::filesystem::path(info.place).is_absolute()) {
    return DamagedInfo(run, fmt::format("place is \"{}\", not an absolute path", info.place));
  }
  if (fields.Has("temporary")) {
    PENSTOCK_ASSIGN(info.temporary, fields.Bool("temporary"));
  }
  PENSTOCK_ASSIGN(const nlohmann::json* const state, fields.Value("state"));
  if (!state->is_null()) {
    PENSTOCK_ASSIGN(const JsonFields files, fields.Object("state"));
    PENSTOCK_ASSIGN(info.state, StateFilesFrom(files, run));
  }
  PENSTOCK_ASSIGN(const std::vector<JsonFields> leftovers, fields.Objects("leftovers"));
  for (const JsonFields& entry : leftovers) {
    PENSTOCK_ASSIGN(StateFiles left, StateFilesFrom(entry, run));
    info.leftovers.push_back(std::move(left));
  }
  PENSTOCK_TRY(ReadNotes(fields, run, &info));
  PENSTOCK_ASSIGN(info.training, CurrentTraining(fields, info.kind));
  return info;
}

Error UnknownVersion(const Folder& run, const nlohmann::json& version) {
  return MakeError(ErrorCode::kCorruption,
                   "{}: version {} is not known to this program; use the one that wrote it",
                   run.PathOf(kInfoName), Excerpt(version));
}

}  // namespace

Status WriteRunInfo(const Folder& run, const RunInfo& info) {
  PENSTOCK_CHECK(!info.run_uuid.empty() && !info.place.empty());
  PENSTOCK_ASSIGN(const Json json, ToJson(info, run));
  try {
    const std::string text = json.dump(2) + "\n";
    // A full drive has no room for what it holds already.
    const Result<std::string> there = ReadTextFile(run, kInfoName, kMaxOwnText);
    return there.ok() && *there == text ? run.Sync() : WriteTextFile(run, kInfoName, text);
  } catch (const nlohmann::json::exception&) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "{} cannot be written: a path or a name that belongs there is not UTF-8",
                     run.PathOf(kInfoName));
  }
}

Result<RunInfo> ParseRunInfo(const std::string& text, const Folder& run) {
  PENSTOCK_ASSIGN(const nlohmann::json json,
                  ParseJsonObject(text, run.PathOf(kInfoName), ErrorCode::kCorruption));
  PENSTOCK_ASSIGN(const JsonFields fields, JsonFields::Of(json, "", run));
  if (fields.Has(kPackageKey)) {
    PENSTOCK_ASSIGN(const nlohmann::json* const version, fields.Value(kPackageKey));
    return *version == kPackageVersion ? ParsePackageInfo(fields, run)
                                       : UnknownVersion(run, *version);
  }
  PENSTOCK_ASSIGN(const nlohmann::json* const version, fields.Value("version"));
  if (*version == kVersion) return ParseCurrent(fields, run);
  for (const int older : kOlderVersions) {
    if (*version == older) return ParseOlderInfo(fields, run);
  }
  return UnknownVersion(run, *version);
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

Result<StateFiles> CommittedFiles(const RunInfo& info, const std::string& run) {
  if (info.state) return *info.state;
  return MakeError(ErrorCode::kNotFound, "{} has no commit yet", run);
}

StateFiles NewestFiles(const RunInfo& info) {
  if (info.state) return *info.state;
  return info.leftovers.empty() ? StateFiles() : info.leftovers.back();
}

}  // namespace penstock::train
