#include "offload/weight_cache.h"

namespace penstock::offload {

BlockLease WeightCache::TakeBlock(uint64_t needed_at, const NextUse& next_use) {
  if (BlockLease block = pool_.TryTake(); block.valid()) return block;
  Entry* furthest = nullptr;
  uint64_t furthest_use = needed_at;
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (!entries_[i].evictable()) continue;
    const uint64_t use = next_use(TileId{static_cast<uint32_t>(i)});
    if (use > furthest_use) {
      furthest = &entries_[i];
      furthest_use = use;
    }
  }
  if (furthest == nullptr) return {};
  ++evictions_;
  furthest->verified = true;
  return std::move(furthest->block);
}

}  // namespace penstock::offload
