#include "train/loop/other_ranks.h"

#include <fmt/format.h>

#include <chrono>

#include "train/loop/metrics.h"

namespace penstock::train {

void OtherRanks::Doing(std::string_view what, uint64_t step) {
  if (parts_.doing) parts_.doing(fmt::format("{} step {}", what, step));
}

Status OtherRanks::AfterStep(DoneStep& step) {
  const double now = ToSeconds(std::chrono::steady_clock::now().time_since_epoch());
  const std::optional<SlowRank::Finding> slow = slow_rank_.Step(step.waited, now);
  if (!slow) return {};
  parts_.notify(
      fmt::format("rank {} (host {}) is slow: for {:.0f} % of the last {} steps all others "
                  "waited for it (reported once)",
                  slow->rank, parts_.hosts[slow->rank], 100 * slow->share, SlowRank::kSteps));
  return {};
}

void OtherRanks::Failing(const Error& why, const std::optional<uint64_t>&) { parts_.tell(why); }

}  // namespace penstock::train
