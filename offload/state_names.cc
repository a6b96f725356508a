#include "offload/state_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

namespace penstock::offload {

std::string StateFileName(const Uuid& uuid, uint32_t rank, size_t path) {
  return fmt::format("penstock-{}{}{}.state", ToString(uuid),
                     rank == 0 ? "" : fmt::format(".r{}", rank),
                     path == 0 ? "" : fmt::format(".{}", path));
}

std::vector<std::string> StatePathsIn(const std::vector<std::string>& folders, const Uuid& uuid,
                                      uint32_t rank) {
  std::vector<std::string> paths;
  for (size_t i = 0; i < folders.size(); ++i) {
    paths.push_back(fmt::format("{}/{}", folders[i], StateFileName(uuid, rank, i)));
  }
  return paths;
}

std::vector<std::string> AllStatesIn(const std::string& folder) {
  std::vector<std::string> paths;
  std::error_code error;
  std::filesystem::directory_iterator it(folder, error);
  for (; !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
    const std::string name = it->path().filename();
    const bool state = name.ends_with(".state") || name.ends_with(UnfinishedCopy(".state"));
    if (name.starts_with("penstock-") && state) paths.push_back(it->path());
  }
  std::ranges::sort(paths);
  return paths;
}

std::string UnfinishedCopy(const std::string& target) { return target + ".tmp"; }

}  // namespace penstock::offload
