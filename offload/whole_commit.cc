#include "offload/whole_commit.h"

#include <algorithm>

#include "base/check.h"

namespace penstock::offload {
namespace {

/// What is wrong with a commit, and with how many parts of it.
std::string DamageText(const CommitName& commit, const std::vector<std::string>& damages) {
  return fmt::format("the commit of step {} is damaged: {}{}", commit.step, damages.front(),
                     damages.size() == 1 ? "" : fmt::format(", and {} more", damages.size() - 1));
}

}  // namespace

Result<ChosenCommit> ChooseCommit(const CommitChoice& choice) {
  PENSTOCK_CHECK(!choice.commits.empty());
  std::vector<CommitName> order = choice.commits;
  // A commit in doubt comes last. (Clang 14 refuses the algorithm of std::ranges.)
  std::stable_partition(order.begin(), order.end(),
                        [&](const CommitName& commit) { return commit.step != choice.doubted; });
  std::vector<std::pair<CommitName, std::string>> left;
  for (const CommitName& commit : order) {
    PENSTOCK_TRY(choice.use(commit));
    PENSTOCK_ASSIGN(const std::vector<std::string> damages, choice.damages());
    if (!damages.empty()) {
      left.emplace_back(commit, DamageText(commit, damages));
      continue;
    }
    ChosenCommit chosen{.name = commit, .notice = {}};
    for (const auto& [other, why] : left) chosen.notice += why + "; ";
    if (choice.doubted == choice.commits.front().step && commit != choice.commits.front()) {
      chosen.notice += fmt::format(
          "no loss that a run computed with the commit of step {} was finite; ", *choice.doubted);
    }
    if (chosen.notice.empty()) return chosen;
    chosen.notice += fmt::format("the commit of step {} is whole and is used", commit.step);
    return chosen;
  }
  std::string all;
  for (const auto& [other, why] : left) all += (all.empty() ? "" : "; ") + why;
  return MakeError(ErrorCode::kCorruption, "{}; {}", all,
                   order.size() == 1 ? "there is no other commit" : "no commit is whole");
}

}  // namespace penstock::offload
