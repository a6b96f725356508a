#include "offload/update_queue.h"

#include "base/check.h"

namespace penstock::offload {

UpdateQueue::UpdateQueue(const Schedule& schedule)
    : schedule_(schedule), tiles_(schedule.update_order.size()) {
  PENSTOCK_CHECK(schedule.load_order.size() == tiles_.size());
  for (size_t rank = 0; rank < tiles_.size(); ++rank) At(schedule.update_order[rank]).rank = rank;
}

void UpdateQueue::Reset(uint64_t version) {
  for (Tile& tile : tiles_) {
    tile.target = version;
    tile.version = version;
  }
  round_ = version;
  ahead_round_ = version;
}

void UpdateQueue::Begin(TileId tile) {
  Tile& entry = At(tile);
  PENSTOCK_CHECK(entry.version == entry.target && entry.target == round_,
                 "tile {} began an update from version {} with version {}, in round {}",
                 Index(tile), entry.target, entry.version, round_);
  ++entry.target;
  ++unfinished_;
  (entry.loaded ? takeable_ : waiting_).insert(entry.rank);
  if (++begun_in_round_ == tiles_.size()) {
    begun_in_round_ = 0;
    ++round_;
  }
}

bool UpdateQueue::LoadMore(const Load& load) {
  const bool begun = LoadBegun(load);
  return (waiting_.empty() && LoadAhead(load)) || begun;
}

bool UpdateQueue::LoadBegun(const Load& load) {
  bool any = false;
  while (!waiting_.empty()) {
    const size_t rank = *waiting_.begin();
    const TileId tile = schedule_.update_order[rank];
    if (!load(tile, false)) break;
    waiting_.erase(waiting_.begin());
    takeable_.insert(rank);
    At(tile).loaded = true;
    any = true;
  }
  return any;
}

bool UpdateQueue::LoadAhead(const Load& load) {
  bool any = false;
  while (true) {
    const TileId tile = schedule_.load_order[ahead_];
    Tile& entry = At(tile);
    if (entry.target == ahead_round_) {
      // Not before the update of the round before is finished.
      if (entry.version != ahead_round_ || !load(tile, true)) break;
      entry.loaded = true;
      any = true;
    } else if (entry.target < ahead_round_) {
      break;
    }
    if (++ahead_ == tiles_.size()) {
      ahead_ = 0;
      ++ahead_round_;
    }
  }
  return any;
}

std::optional<TileId> UpdateQueue::Take(const Ready& ready) {
  for (auto at = takeable_.begin(); at != takeable_.end(); ++at) {
    const TileId tile = schedule_.update_order[*at];
    if (!ready(tile)) continue;
    takeable_.erase(at);
    At(tile).loaded = false;
    return tile;
  }
  return std::nullopt;
}

void UpdateQueue::Finish(TileId tile) {
  Tile& entry = At(tile);
  PENSTOCK_CHECK(unfinished_ > 0 && entry.version + 1 == entry.target);
  ++entry.version;
  --unfinished_;
}

}  // namespace penstock::offload
