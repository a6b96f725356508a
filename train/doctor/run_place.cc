#include "train/doctor/run_place.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/folder.h"

namespace penstock::train {
namespace {

/// Of the files that lie on this host.
std::vector<std::string> FoldersOn(const StateFiles& state, const std::string& own) {
  std::vector<std::string> folders;
  for (const RankFiles& rank : state.ranks) {
    if (!rank.host.empty() && rank.host != own) continue;
    for (const std::string& path : rank.paths) {
      std::string folder = SplitPath(path).first;
      if (std::ranges::find(folders, folder) == folders.end()) folders.push_back(std::move(folder));
    }
  }
  return folders;
}

}  // namespace

RunPlace PlaceOf(const StateFiles& state, const std::string& own) {
  const auto on = [&state](const std::string& host) {
    return static_cast<uint64_t>(std::ranges::count(state.ranks, host, &RankFiles::host));
  };
  RunPlace place = {.folders = FoldersOn(state, own),
                    .files = state.all().size(),
                    .ranks = state.ranks.size(),
                    .host = own,
                    .ranks_of_host = on("") + (own.empty() ? 0 : on(own))};
  if (place.ranks_of_host > 0 || state.ranks.empty()) return place;
  place.host = state.ranks.front().host;
  place.ranks_of_host = on(place.host);
  return place;
}

std::string OwnHost() {
  std::array<char, 256> name = {};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

}  // namespace penstock::train
