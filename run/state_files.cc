#include "run/state_files.h"

#include <fmt/format.h>

#include <algorithm>
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

bool LiesIn(const StateFiles& files, const std::string& folder) {
  return std::ranges::all_of(
      files.all(), [&](const std::string& path) { return SplitPath(path).first == folder; });
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

Result<nlohmann::ordered_json> ToJson(const StateFiles& files, const Folder& run) {
  nlohmann::ordered_json ranks = nlohmann::ordered_json::array();
  for (const RankFiles& rank : files.ranks) {
    PENSTOCK_ASSIGN(const std::vector<std::string> paths, RelativeTo(run, rank.paths));
    ranks.push_back({{"host", rank.host}, {"paths", paths}});
  }
  return nlohmann::ordered_json{{"uuid", files.uuid}, {"ranks", std::move(ranks)}};
}

Result<StateFiles> StateFilesFrom(const JsonFields& fields, const Folder& run) {
  PENSTOCK_TRY(fields.CheckKeys({"uuid", "ranks"}));
  StateFiles state;
  PENSTOCK_ASSIGN(state.uuid, fields.Name("uuid"));
  PENSTOCK_ASSIGN(const std::vector<JsonFields> ranks, fields.Objects("ranks"));
  PENSTOCK_TRY(CheckRanks(ranks.size(), 1, run));
  for (const JsonFields& entry : ranks) {
    PENSTOCK_TRY(entry.CheckKeys({"host", "paths"}));
    RankFiles rank;
    PENSTOCK_ASSIGN(rank.host, entry.Text("host"));
    PENSTOCK_ASSIGN(rank.paths, StatePathsFrom(entry, "paths", run));
    state.ranks.push_back(std::move(rank));
  }
  return state;
}

Result<std::vector<std::string>> StatePathsFrom(const JsonFields& fields, const char* key,
                                                const Folder& run) {
  PENSTOCK_ASSIGN(std::vector<std::string> paths, fields.Texts(key));
  for (std::string& text : paths) {
    const fs::path path = text;
    if (!path.has_filename() || path.filename() == "." || path.filename() == "..") {
      return DamagedInfo(run, fmt::format("\"{}\" is no path of a state file", text));
    }
    text = (fs::path(run.path()) / path).string();
  }
  if (paths.empty()) return DamagedInfo(run, "it names no state file");
  return paths;
}

Status CheckRanks(size_t ranks, size_t min, const Folder& run) {
  if (ranks >= min && ranks <= offload::kMaxRanks) return {};
  return DamagedInfo(
      run, fmt::format("\"ranks\" is no list of {} to {} ranks' files", min, offload::kMaxRanks));
}

}  // namespace penstock::train
