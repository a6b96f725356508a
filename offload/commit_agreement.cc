#include "offload/commit_agreement.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/check.h"

namespace penstock::offload {
namespace {

bool Holds(const std::vector<HeldCommit>& held, const CommitName& name) {
  return std::ranges::find(held, name, &HeldCommit::name) != held.end();
}

/// "steps 10, 8", of the newest commit first.
std::string StepsText(const std::vector<HeldCommit>& held) {
  if (held.empty()) return "none";
  std::vector<HeldCommit> newest_first = held;
  std::ranges::sort(newest_first, std::ranges::greater(), &HeldCommit::sequence);
  std::vector<std::string> steps;
  for (const HeldCommit& commit : newest_first) {
    steps.push_back(fmt::format("{} of session {:x}", commit.name.step, commit.name.session));
  }
  return fmt::format("step{} {}", steps.size() == 1 ? "" : "s", fmt::join(steps, ", "));
}

/// "0-2, 5" for sorted numbers.
std::string RangesText(const std::vector<size_t>& ranks) {
  std::vector<std::string> ranges;
  for (size_t i = 0; i < ranks.size();) {
    size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    ranges.push_back(end == i + 1 ? fmt::format("{}", ranks[i])
                                  : fmt::format("{}-{}", ranks[i], ranks[end - 1]));
    i = end;
  }
  return fmt::format("{}", fmt::join(ranges, ", "));
}

/// "ranks 0-2, 5: steps 10, 8; rank 3: none": ranks that hold the same are named together.
std::string HoldingsText(std::span<const std::vector<HeldCommit>> of_ranks) {
  std::vector<std::pair<std::string, std::vector<size_t>>> holders;
  for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
    std::string steps = StepsText(of_ranks[rank]);
    auto known = std::ranges::find(holders, steps, &decltype(holders)::value_type::first);
    if (known == holders.end()) {
      known = holders.insert(known, {std::move(steps), std::vector<size_t>()});
    }
    known->second.push_back(rank);
  }
  std::vector<std::string> parts;
  for (const auto& [steps, ranks] : holders) {
    parts.push_back(
        fmt::format("rank{} {}: {}", ranks.size() == 1 ? "" : "s", RangesText(ranks), steps));
  }
  return fmt::format("{}", fmt::join(parts, "; "));
}

}  // namespace

Result<std::vector<CommitName>> CommonCommits(std::span<const std::vector<HeldCommit>> of_ranks) {
  PENSTOCK_CHECK(!of_ranks.empty());
  std::vector<HeldCommit> in_common;
  for (const HeldCommit& commit : of_ranks.front()) {
    const bool common =
        std::ranges::all_of(of_ranks, [&](const auto& held) { return Holds(held, commit.name); });
    if (common) in_common.push_back(commit);
  }
  std::ranges::sort(in_common, std::ranges::greater(), &HeldCommit::sequence);
  std::vector<CommitName> names;
  for (const HeldCommit& commit : in_common) names.push_back(commit.name);
  if (!names.empty()) return names;
  const std::string holdings = HoldingsText(of_ranks);
  if (std::ranges::any_of(of_ranks, [](const auto& held) { return held.empty(); })) {
    return MakeError(ErrorCode::kNotFound,
                     "no commit is in the files of all ranks ({}): the run ended before its first "
                     "one was complete",
                     holdings);
  }
  return MakeError(ErrorCode::kCorruption,
                   "the ranks hold no commit in common ({}): their files are of different moments; "
                   "put back those that belong together",
                   holdings);
}

std::string NewerNotice(std::span<const std::vector<HeldCommit>> of_ranks,
                        const CommitName& common) {
  for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
    const CommitName& newest = of_ranks[rank].front().name;
    if (newest == common) continue;
    return fmt::format(
        "rank {} holds a commit of step {} that not all ranks hold: the run ended before it was "
        "complete, or another rank's was damaged since; the commit of step {} counts, and --resume "
        "starts from it",
        rank, newest.step, common.step);
  }
  return {};
}

}  // namespace penstock::offload
