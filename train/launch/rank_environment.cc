#include "train/launch/rank_environment.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "base/token.h"

namespace penstock::train {
namespace {

bool IsOfALauncher(std::string_view name) {
  constexpr std::string_view kNames[] = {
      "RANK",        "WORLD_SIZE",  "LOCAL_RANK",  "LOCAL_WORLD_SIZE",
      "MASTER_ADDR", "MASTER_PORT", kTokenVariable};
  constexpr std::string_view kPrefixes[] = {"TORCHELASTIC_", "OMPI_", "PMIX_", "SLURM_"};
  return std::ranges::find(kNames, name) != std::end(kNames) ||
         std::ranges::any_of(kPrefixes, [name](auto prefix) { return name.starts_with(prefix); });
}

std::string_view NameOf(std::string_view variable) {
  return variable.substr(0, variable.find('='));
}

/// Whether a shell can export it.
bool IsShellName(std::string_view name) {
  return name.find_first_not_of(
             "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_") ==
         std::string_view::npos;
}

}  // namespace

std::vector<std::string> RankVariables(const RankPlace& place, uint32_t ranks,
                                       const MeetingPoint& meeting) {
  return {fmt::format("RANK={}", place.rank),
          fmt::format("WORLD_SIZE={}", ranks),
          fmt::format("LOCAL_RANK={}", place.local_rank),
          fmt::format("LOCAL_WORLD_SIZE={}", place.local_size),
          "MASTER_ADDR=" + meeting.address,
          fmt::format("MASTER_PORT={}", meeting.port)};
}

std::string TokenVariable(const MeetingPoint& meeting) {
  return fmt::format("{}={}", kTokenVariable, meeting.token);
}

std::vector<std::string> WithoutLaunchers(std::span<const std::string> environment) {
  std::vector<std::string> rest;
  for (const std::string& variable : environment) {
    if (!IsOfALauncher(NameOf(variable))) rest.push_back(variable);
  }
  return rest;
}

std::vector<std::string> VariablesForAllHosts(std::span<const std::string> environment) {
  std::vector<std::string> chosen;
  for (const std::string& variable : environment) {
    const std::string_view name = NameOf(variable);
    if (name.starts_with("NCCL_") && IsShellName(name)) chosen.push_back(variable);
  }
  return chosen;
}

}  // namespace penstock::train
