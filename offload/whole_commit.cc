#include "offload/whole_commit.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/check.h"

namespace penstock::offload {
namespace {

/// What is wrong with a commit, and with how many parts of it.
std::string DamageText(const CommitName& commit, const std::vector<std::string>& damages) {
  return fmt::format("the commit of step {} is damaged: {}{}", commit.step, damages.front(),
                     damages.size() == 1 ? "" : fmt::format(", and {} more", damages.size() - 1));
}

/// Returns the notice about a choice. `left`: the damage of the commits that were tried before.
std::string NoticeOf(const CommitChoice& choice, const CommitName& chosen,
                     const std::vector<std::string>& left) {
  const CommitName& newest = choice.commits.front();
  const std::string doubt =
      choice.doubted == newest.step
          ? fmt::format("the commit of step {} gave no finite loss", newest.step)
          : "";
  if (chosen == newest) {
    // One before it was tried for the doubt alone, and updates overwrite it by right.
    if (left.empty()) return "";
    return fmt::format(
        "{}, and the one before is overwritten or damaged: the commit of step {} is used all the "
        "same",
        doubt, newest.step);
  }
  std::vector<std::string> reasons = left;
  if (!doubt.empty()) reasons.push_back(doubt);
  return fmt::format("{}; the commit {} is whole and is used", fmt::join(reasons, "; "),
                     chosen.step == newest.step
                         ? fmt::format("before it, also of step {},", chosen.step)
                         : fmt::format("of step {}", chosen.step));
}

}  // namespace

Result<ChosenCommit> ChooseCommit(const CommitChoice& choice) {
  PENSTOCK_CHECK(!choice.commits.empty());
  std::vector<CommitName> order = choice.commits;
  const std::optional<WantedCommit>& wanted = choice.wanted;
  // A commit in doubt comes last. (Clang 14 refuses the algorithm of std::ranges.)
  if (!wanted) {
    std::stable_partition(order.begin(), order.end(),
                          [&](const CommitName& commit) { return commit.step != choice.doubted; });
  }
  std::vector<std::string> left;
  if (wanted && !wanted->notice.empty()) left.push_back(wanted->notice);
  bool damaged = !left.empty();
  bool tried = false;  // the step that is wanted
  for (const CommitName& commit : order) {
    if (tried && commit.step != wanted->step) break;
    PENSTOCK_TRY(choice.use(commit));
    PENSTOCK_ASSIGN(const std::vector<std::string> damages, choice.damages());
    const bool may_be_used = !wanted || commit.step == wanted->step;
    if (damages.empty() && may_be_used) {
      return ChosenCommit{.name = commit, .notice = NoticeOf(choice, commit, left)};
    }
    damaged = damaged || !damages.empty();
    const bool doubted = commit.step == choice.doubted;
    left.push_back(damages.empty() ? fmt::format("its newest commit is of step {}{}", commit.step,
                                                 doubted ? ", which gave no finite loss" : "")
                                   : DamageText(commit, damages));
    if (wanted && damages.empty() && !doubted) break;
    tried = wanted && may_be_used;
  }
  if (wanted) {
    return MakeError(damaged ? ErrorCode::kCorruption : ErrorCode::kInvalidArgument,
                     "{}: {}; that of step {} was asked for", wanted->path, fmt::join(left, "; "),
                     wanted->step);
  }
  return MakeError(ErrorCode::kCorruption, "{}; {}", fmt::join(left, "; "),
                   order.size() == 1 ? "there is no other commit" : "no commit is whole");
}

}  // namespace penstock::offload
