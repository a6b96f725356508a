#include "offload/schedule.h"

#include <algorithm>

#include "base/check.h"

namespace penstock::offload {

Fetches::Fetches(const Schedule& schedule)
    : length_(schedule.length()), uses_(schedule.first_use.size()) {
  for (uint64_t use = 0; use < length_; ++use) {
    const ScheduledUse& planned = schedule.uses[use];
    if (planned.fetch) uses_[Index(planned.module)].push_back(use);
  }
  for (const std::vector<uint64_t>& uses : uses_) PENSTOCK_CHECK(!uses.empty());
}

uint64_t Fetches::Next(ModuleId module, uint64_t from) const {
  const std::vector<uint64_t>& uses = uses_[Index(module)];
  const uint64_t use = from % length_;
  const auto next = std::ranges::lower_bound(uses, use);
  return from - use + (next != uses.end() ? *next : length_ + uses.front());
}

}  // namespace penstock::offload
