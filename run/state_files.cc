#include "run/state_files.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "offload/state_format.h"
#include "run/run_folder.h"

namespace penstock::train {
namespace {

namespace fs = std::filesystem;

/// "my.state" for RUN/my.state, everything else unchanged: a run whose state lies in RUN can be
/// moved.
Result<std::vector<std::string>> RelativeTo(const Folder& run,
                                            const std::vector<std::string>& paths) {
  std::vector<std::string> relative;
  for (const std::string& path : paths) {
    const auto [folder, name] = SplitPath(path);
    PENSTOCK_ASSIGN(const bool in_run, run.IsAt(folder));
    relative.push_back(in_run ? name : path);
  }
  return relative;
}

Result<RankFiles> RankFilesFrom(const nlohmann::json& json, const Folder& run) {
  RankFiles files;
  for (const auto& entry : json.at("state_paths")) {
    const fs::path path = entry.get<std::string>();
    if (!path.has_filename() || path.filename() == "." || path.filename() == "..") {
      return DamagedInfo(run, fmt::format("\"{}\" is no path of a state file", path.string()));
    }
    files.paths.push_back((fs::path(run.path()) / path).string());
  }
  if (files.paths.empty()) return DamagedInfo(run, "it names no state file");
  return files;
}

}  // namespace

offload::RankPaths StateFiles::paths() const {
  offload::RankPaths paths;
  for (const RankFiles& rank : ranks) paths.push_back(rank.paths);
  return paths;
}

std::vector<std::string> StateFiles::all() const {
  std::vector<std::string> files;
  for (const RankFiles& rank : ranks) {
    files.insert(files.end(), rank.paths.begin(), rank.paths.end());
  }
  return files;
}

std::string RankNote(const StateFiles& files, size_t rank) {
  if (files.ranks.size() == 1) return {};
  return fmt::format("; of rank {}, host {}", rank, files.ranks[rank].host);
}

Error NamingHost(Error error, const StateFiles& files) {
  for (size_t rank = 0; rank < files.ranks.size(); ++rank) {
    for (const std::string& path : files.ranks[rank].paths) {
      std::error_code ignored;
      if (files.ranks.size() == 1 || fs::exists(fs::symlink_status(path, ignored))) continue;
      error.message +=
          fmt::format("; rank {} wrote {} on host {}", rank, path, files.ranks[rank].host);
      return error;
    }
  }
  return error;
}

Error DamagedInfo(const Folder& run, const std::string& why) {
  return MakeError(ErrorCode::kCorruption, "{} is damaged: {}", run.PathOf(kInfoName), why);
}

Result<nlohmann::ordered_json> ToJson(const StateFiles& files, const Folder& run) {
  nlohmann::ordered_json ranks = nlohmann::ordered_json::array();
  for (const RankFiles& rank : files.ranks) {
    PENSTOCK_ASSIGN(const std::vector<std::string> paths, RelativeTo(run, rank.paths));
    ranks.push_back({{"host", rank.host}, {"state_paths", paths}});
  }
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  if (files.ranks.size() == 1) {
    json["state_paths"] = ranks.front()["state_paths"];
  } else {
    json["ranks"] = std::move(ranks);
  }
  json["state_uuid"] = files.uuid;
  return json;
}

Result<StateFiles> StateFilesFrom(const nlohmann::json& json, const Folder& run) {
  StateFiles state{.ranks = {}, .uuid = json.at("state_uuid").get<std::string>()};
  if (state.uuid.empty()) return DamagedInfo(run, "it names a state without a UUID");
  if (!json.contains("ranks")) {
    PENSTOCK_ASSIGN(RankFiles only, RankFilesFrom(json, run));
    state.ranks.push_back(std::move(only));
    return state;
  }
  const nlohmann::json& ranks = json["ranks"];
  if (!ranks.is_array() || ranks.size() < 2 || ranks.size() > offload::kMostRanks) {
    return DamagedInfo(
        run, fmt::format("\"ranks\" is no list of 2 to {} ranks' files", offload::kMostRanks));
  }
  for (const auto& entry : ranks) {
    PENSTOCK_ASSIGN(RankFiles rank, RankFilesFrom(entry, run));
    rank.host = entry.at("host").get<std::string>();
    state.ranks.push_back(std::move(rank));
  }
  return state;
}

}  // namespace penstock::train
