// Which files a state has, as run.json names them: {"uuid": "…", "ranks": [{"host": "…", "paths":
// […]}]}, ranks by rank.
//
// Threads: one at a time.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/folder.h"
#include "base/result.h"
#include "offload/whole_state.h"
#include "run/json_fields.h"

namespace penstock::train {

/// The files of one rank.
struct RankFiles {
  /// By index of their path: absolute; stored relative to RUN if they lie there.
  std::vector<std::string> paths;
  std::string host;  ///< where the rank wrote them; empty for a state of one rank
};

/// The files of a state.
struct StateFiles {
  std::vector<RankFiles> ranks;  ///< by rank
  std::string uuid;

  /// Returns the files of a state of one rank.
  static StateFiles OfOneRank(std::vector<std::string> paths, std::string uuid) {
    return {.ranks = {{.paths = std::move(paths), .host = {}}}, .uuid = std::move(uuid)};
  }
  /// Returns the file that messages name for the state.
  const std::string& first() const { return ranks.front().paths.front(); }
  /// Returns every file, by rank and path.
  offload::RankPaths paths() const;
  /// Returns the same as one list.
  std::vector<std::string> all() const;
};

/// Whether all files of a state lie in a folder, whose path is absolute and without links.
bool LiesIn(const StateFiles& files, const std::string& folder);

/// "; of rank 3, host b"; empty for a state of one rank.
std::string RankNote(const StateFiles& files, size_t rank);

/// Returns an error of opening a state's files with the host whose file is not there, if there is
/// such a file and the state has several ranks.
Error NamingHost(Error error, const StateFiles& files);

/// Returns what run.json holds of a state. Errors: of looking at the folders.
Result<nlohmann::ordered_json> ToJson(const StateFiles& files, const Folder& run);
/// Reads it. Errors: kCorruption, naming run.json.
Result<StateFiles> StateFilesFrom(const JsonFields& fields, const Folder& run);

/// Reads a list of at least one path of a state file, and makes the paths absolute. Errors:
/// kCorruption.
Result<std::vector<std::string>> StatePathsFrom(const JsonFields& fields, const char* key,
                                                const Folder& run);
/// Refuses a number of ranks that no state has. Errors: kCorruption.
Status CheckRanks(size_t ranks, size_t min, const Folder& run);

}  // namespace penstock::train
