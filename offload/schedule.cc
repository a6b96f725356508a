#include "offload/schedule.h"

#include <algorithm>

namespace penstock::offload {

HostUses::HostUses(const Schedule& schedule)
    : length_(schedule.length()), first_use_(schedule.first_use), update_at_(schedule.update_at) {
  const size_t modules = first_use_.size();
  std::vector<uint32_t> next(modules, static_cast<uint32_t>(length_));
  next_fetch_.resize(length_ * modules);
  for (size_t use = length_; use-- > 0;) {
    const ScheduledUse& planned = schedule.uses[use];
    if (planned.fetch) next[Index(planned.module)] = static_cast<uint32_t>(use);
    for (size_t i = 0; i < modules; ++i) next_fetch_[use * modules + i] = next[i];
  }
}

uint64_t HostUses::Next(ModuleId module, uint64_t now, bool updated) const {
  const uint64_t use = now % length_;
  const uint64_t step_start = now - use;
  const uint32_t fetch = next_fetch_[use * first_use_.size() + Index(module)];
  if (fetch < length_) return step_start + fetch;
  if (updated) return step_start + length_ + first_use_[Index(module)];
  return step_start + std::max(update_at_[Index(module)], use + 1);
}

}  // namespace penstock::offload
