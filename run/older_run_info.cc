#include "run/older_run_info.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <string_view>
#include <system_error>
#include <utility>

#include "offload/state_names.h"
#include "offload/uuid.h"
#include "run/run_info_fields.h"
#include "run/state_files.h"

namespace penstock::train {
namespace {

namespace fs = std::filesystem;

Result<StateFiles> OlderStateFrom(const JsonFields& fields, const Folder& run) {
  StateFiles state;
  PENSTOCK_ASSIGN(state.uuid, fields.Name("state_uuid"));
  if (!fields.Has("ranks")) {
    PENSTOCK_ASSIGN(std::vector<std::string> paths, StatePathsFrom(fields, "state_paths", run));
    state.ranks.push_back({.paths = std::move(paths), .host = {}});
    return state;
  }
  PENSTOCK_ASSIGN(const std::vector<JsonFields> ranks, fields.Objects("ranks"));
  PENSTOCK_TRY(CheckRanks(ranks.size(), 2, run));
  for (const JsonFields& entry : ranks) {
    RankFiles rank;
    PENSTOCK_ASSIGN(rank.host, entry.Text("host"));
    PENSTOCK_ASSIGN(rank.paths, StatePathsFrom(entry, "state_paths", run));
    state.ranks.push_back(std::move(rank));
  }
  return state;
}

/// Where a run of the package may have files of its own.
struct PackagePlaces {
  std::string run;
  std::vector<std::string> folders;
  bool moved = false;  ///< RUN was moved or copied: what lies elsewhere may be another's
};

std::string Found(const std::string& path, const PackagePlaces& places) {
  std::error_code ignored;
  if (!places.moved && fs::exists(path, ignored)) return path;
  const std::string name = fs::path(path).filename();
  if (fs::exists(fs::path(places.run) / name, ignored)) return fs::path(places.run) / name;
  for (const std::string& folder : places.folders) {
    if (!places.moved && fs::exists(fs::path(folder) / name, ignored)) {
      return fs::path(folder) / name;
    }
  }
  return path;
}

/// The UUID in "penstock-<UUID>.state" or "penstock-<UUID>.1.state"; empty for other names.
std::string UuidIn(const std::string& path) {
  constexpr std::string_view kPrefix = "penstock-";
  const std::string name = fs::path(path).filename();
  if (!name.starts_with(kPrefix)) return {};
  const std::string uuid = name.substr(kPrefix.size(), name.find('.') - kPrefix.size());
  const size_t length = offload::ToString(offload::Uuid{}).size();
  return uuid.size() == length ? uuid : std::string();
}

/// The states in the run's folders, but for the one that is named.
std::vector<StateFiles> LeftIn(const PackagePlaces& places, const std::string& named) {
  std::vector<std::string> folders = places.moved ? std::vector<std::string>() : places.folders;
  if (std::ranges::find(folders, places.run) == folders.end()) folders.push_back(places.run);
  std::map<std::string, std::vector<std::string>> states;
  for (const std::string& folder : folders) {
    for (const std::string& path : offload::AllStatesIn(folder)) {
      const std::string uuid = UuidIn(path);
      if (!uuid.empty() && uuid != named) states[uuid].push_back(path);
    }
  }
  std::vector<StateFiles> left;
  for (auto& [uuid, paths] : states) left.push_back(StateFiles::OfOneRank(std::move(paths), uuid));
  return left;
}

}  // namespace

Result<RunInfo> ParseOlderInfo(const JsonFields& fields, const Folder& run) {
  RunInfo info{.format = RunFormat::kOlder};
  PENSTOCK_ASSIGN(info.program, fields.Text("program"));
  PENSTOCK_ASSIGN(info.state, OlderStateFrom(fields, run));
  // Runs that were begun before it was kept: their snapshots have the state's UUID, unless the
  // state was moved since.
  info.run_uuid = info.state->uuid;
  if (fields.Has("run_uuid")) {
    PENSTOCK_ASSIGN(info.run_uuid, fields.Name("run_uuid"));
  }
  if (fields.Has("leftovers")) {
    PENSTOCK_ASSIGN(const std::vector<JsonFields> leftovers, fields.Objects("leftovers"));
    for (const JsonFields& entry : leftovers) {
      PENSTOCK_ASSIGN(StateFiles state, OlderStateFrom(entry, run));
      info.leftovers.push_back(std::move(state));
    }
  }
  PENSTOCK_TRY(ReadNotes(fields, run, &info));
  PENSTOCK_ASSIGN(info.training, TrainingFrom(fields));
  return info;
}

Result<RunInfo> ParsePackageInfo(const JsonFields& fields, const Folder& run) {
  RunInfo info{.format = RunFormat::kOlderPackage};
  PENSTOCK_ASSIGN(const std::string kind, fields.Text("kind"));
  if (kind != "optimizer" && kind != "module") {
    return DamagedInfo(run, fmt::format("its kind is \"{}\"", kind));
  }
  info.kind = kind == "module" ? RunKind::kModule : RunKind::kOptimizer;
  PENSTOCK_ASSIGN(const std::string id, fields.Name("id"));
  PENSTOCK_ASSIGN(info.place, fields.Name("place"));
  PENSTOCK_ASSIGN(const bool named, fields.Bool("named"));
  info.temporary = !named;
  PackagePlaces places{.run = run.path()};
  PENSTOCK_ASSIGN(places.folders, fields.Texts("folders"));
  // It had files in RUN and in folders that it made for itself. What is in others is not its own.
  std::erase_if(places.folders, [&](const std::string& folder) {
    return folder != info.place && SplitPath(folder).second != "penstock-" + id;
  });
  PENSTOCK_ASSIGN(const bool same, run.IsAt(info.place));
  places.moved = !same;
  PENSTOCK_ASSIGN(const nlohmann::json* const state, fields.Value("state"));
  if (!state->is_null()) {
    PENSTOCK_ASSIGN(const JsonFields files, fields.Object("state"));
    PENSTOCK_ASSIGN(const std::string uuid, files.Name("uuid"));
    PENSTOCK_ASSIGN(std::vector<std::string> paths, StatePathsFrom(files, "paths", run));
    for (std::string& path : paths) path = Found(path, places);
    info.state = StateFiles::OfOneRank(std::move(paths), uuid);
  }
  info.leftovers = LeftIn(places, info.state ? info.state->uuid : std::string());
  return info;
}

}  // namespace penstock::train
