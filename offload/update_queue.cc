#include "offload/update_queue.h"

#include "base/check.h"

namespace penstock::offload {
namespace {

void SetMember(std::set<size_t>& ranks, size_t rank, bool member) {
  if (member) {
    ranks.insert(rank);
  } else {
    ranks.erase(rank);
  }
}

}  // namespace

UpdateQueue::UpdateQueue(const Schedule& schedule, size_t tiles)
    : schedule_(schedule), tiles_(tiles) {
  const std::vector<TileId>& order = schedule.update_order;
  PENSTOCK_CHECK(order.size() <= tiles && schedule.load_order.size() == order.size());
  for (size_t rank = 0; rank < order.size(); ++rank) At(order[rank]).rank = rank;
}

void UpdateQueue::Reset(uint64_t version) {
  for (const TileId tile : schedule_.update_order) {
    At(tile).target = version;
    At(tile).version = version;
  }
  round_ = version;
  ahead_round_ = version;
}

void UpdateQueue::Sort(const Tile& tile) {
  SetMember(waiting_, tile.rank, tile.begun() && !tile.loaded && !tile.held_back);
  SetMember(takeable_, tile.rank, tile.begun() && tile.loaded && tile.ready && !tile.taken);
}

void UpdateQueue::Begin(TileId tile) {
  Tile& entry = At(tile);
  PENSTOCK_CHECK(entry.version == entry.target && entry.target == round_,
                 "tile {} began an update from version {} with version {}, in round {}",
                 Index(tile), entry.target, entry.version, round_);
  ++entry.target;
  ++unfinished_;
  if (!entry.loaded) ++unloaded_;
  Sort(entry);
  if (++begun_in_round_ == schedule_.update_order.size()) {
    begun_in_round_ = 0;
    ++round_;
  }
}

std::optional<UpdateQueue::Candidate> UpdateQueue::NextToLoad() {
  if (!waiting_.empty()) return Candidate{schedule_.update_order[*waiting_.begin()], false};
  const size_t count = schedule_.load_order.size();
  if (unloaded_ > 0 || count == 0) return std::nullopt;
  while (At(schedule_.load_order[ahead_]).target > ahead_round_) {
    if (++ahead_ == count) {
      ahead_ = 0;
      ++ahead_round_;
    }
  }
  if (ahead_round_ > last_round_) return std::nullopt;
  const TileId tile = schedule_.load_order[ahead_];
  const Tile& entry = At(tile);
  // The update of the round before comes first.
  if (entry.version != ahead_round_ || entry.loaded || entry.held_back) return std::nullopt;
  return Candidate{tile, true};
}

void UpdateQueue::Loaded(TileId tile) {
  Tile& entry = At(tile);
  PENSTOCK_CHECK(!entry.loaded && !entry.held_back);
  entry.loaded = true;
  Sort(entry);
  if (entry.begun()) {
    --unloaded_;
    return;
  }
  PENSTOCK_CHECK(tile == schedule_.load_order[ahead_]);
  if (++ahead_ == schedule_.load_order.size()) {
    ahead_ = 0;
    ++ahead_round_;
  }
}

void UpdateQueue::HoldBack(TileId tile) {
  At(tile).held_back = true;
  Sort(At(tile));
}

void UpdateQueue::LetGo(TileId tile) {
  At(tile).held_back = false;
  Sort(At(tile));
}

void UpdateQueue::SetReady(TileId tile, bool ready) {
  if (At(tile).ready == ready) return;
  At(tile).ready = ready;
  Sort(At(tile));
}

std::optional<TileId> UpdateQueue::Take() {
  if (takeable_.empty()) return std::nullopt;
  const TileId tile = schedule_.update_order[*takeable_.begin()];
  takeable_.erase(takeable_.begin());
  At(tile).taken = true;
  return tile;
}

void UpdateQueue::Finish(TileId tile) {
  Tile& entry = At(tile);
  PENSTOCK_CHECK(unfinished_ > 0 && entry.version + 1 == entry.target && entry.taken);
  ++entry.version;
  entry.loaded = false;
  entry.ready = false;
  entry.taken = false;
  --unfinished_;
  Sort(entry);
}

}  // namespace penstock::offload
