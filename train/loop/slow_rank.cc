#include "train/loop/slow_rank.h"

#include <algorithm>
#include <utility>

namespace penstock::train {

std::optional<SlowRank::Finding> SlowRank::Step(const std::vector<double>& waited, double now) {
  if (named_ || waited.size() < 2) return {};
  if (begin_ && ++steps_ < kSteps) return {};
  steps_ = 0;
  const std::optional<Reading> begin = std::exchange(begin_, Reading{.waited = waited, .at = now});
  if (!begin) return {};
  std::vector<std::pair<double, uint32_t>> least;
  for (uint32_t rank = 0; rank < waited.size(); ++rank) {
    least.emplace_back(waited[rank] - begin->waited[rank], rank);
  }
  std::ranges::partial_sort(least, least.begin() + 2);
  const double share = (least[1].first - least[0].first) / std::max(now - begin->at, 1e-9);
  if (share <= kShare) return {};
  named_ = true;
  return Finding{.rank = least[0].second, .share = share};
}

}  // namespace penstock::train
