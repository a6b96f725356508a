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

UpdateQueue::UpdateQueue(const Schedule& schedule, size_t tiles, uint64_t passes)
    : schedule_(&schedule), passes_(passes), tiles_(tiles) {
  PENSTOCK_CHECK(passes == 1 || passes == 2);
  SetSchedule(schedule);
}

void UpdateQueue::SetSchedule(const Schedule& schedule) {
  const std::vector<TileId>& order = schedule.update_order;
  PENSTOCK_CHECK(order.size() <= tiles_.size() && schedule.load_order.size() == order.size() &&
                 order.size() == schedule_->update_order.size());
  schedule_ = &schedule;
  for (size_t i = 0; i < order.size(); ++i) {
    At(order[i]).rank = i;
    At(schedule.load_order[i]).position = i;
  }
  waiting_.clear();
  takeable_.clear();
  to_load_.clear();
  for (const TileId tile : order) {
    At(tile).to_load.reset();
    Sort(At(tile));
  }
}

void UpdateQueue::Reset(uint64_t version) {
  for (const TileId tile : schedule_->update_order) {
    At(tile).target = version * passes_;
    At(tile).version = version * passes_;
    Sort(At(tile));
  }
  round_ = version * passes_;
}

void UpdateQueue::Sort(Tile& tile) {
  if (!tile.rank) return;
  SetMember(waiting_, *tile.rank, tile.waits());
  SetMember(takeable_, *tile.rank, tile.begun() && tile.loaded && tile.ready && !tile.taken);
  std::optional<LoadPlace> to_load;
  if (!tile.ahead()) to_load = {tile.target, tile.position};
  if (to_load == tile.to_load) return;
  if (tile.to_load) to_load_.erase(*tile.to_load);
  if (to_load) to_load_.insert(*to_load);
  tile.to_load = to_load;
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
  if (++begun_in_round_ == schedule_->update_order.size()) {
    begun_in_round_ = 0;
    ++round_;
  }
}

std::optional<UpdateQueue::Candidate> UpdateQueue::NextToLoad(std::optional<TileId> urgent) {
  if (urgent && At(*urgent).waits()) return Candidate{*urgent, false};
  if (!waiting_.empty()) return Candidate{schedule_->update_order[*waiting_.begin()], false};
  if (unloaded_ > 0 || to_load_.empty()) return std::nullopt;
  const auto [round, position] = *to_load_.begin();
  if (round > last_round_) return std::nullopt;
  const TileId tile = schedule_->load_order[position];
  const Tile& entry = At(tile);
  // The update of the round before comes first.
  if (entry.begun() || entry.held_back) return std::nullopt;
  return Candidate{tile, true};
}

void UpdateQueue::Loaded(TileId tile) {
  Tile& entry = At(tile);
  PENSTOCK_CHECK(!entry.loaded && !entry.held_back);
  entry.loaded = true;
  if (entry.begun()) --unloaded_;
  Sort(entry);
}

void UpdateQueue::Unload(TileId tile) {
  Tile& entry = At(tile);
  PENSTOCK_CHECK(entry.ahead());
  entry.loaded = false;
  Sort(entry);
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
  const TileId tile = schedule_->update_order[*takeable_.begin()];
  takeable_.erase(takeable_.begin());
  At(tile).taken = true;
  return tile;
}

void UpdateQueue::GiveBack(TileId tile) {
  PENSTOCK_CHECK(At(tile).taken, "tile {} was not taken", Index(tile));
  At(tile).taken = false;
  Sort(At(tile));
}

void UpdateQueue::Finish(TileId tile) {
  Tile& entry = At(tile);
  PENSTOCK_CHECK(unfinished_ > 0 && entry.version + 1 == entry.target && entry.taken);
  PENSTOCK_CHECK(!in_first_pass(tile));
  ++entry.version;
  entry.loaded = false;
  entry.ready = false;
  entry.taken = false;
  --unfinished_;
  Sort(entry);
}

void UpdateQueue::FinishFirstPass(TileId tile) {
  Tile& entry = At(tile);
  PENSTOCK_CHECK(unfinished_ > 0 && entry.version + 1 == entry.target && entry.taken);
  PENSTOCK_CHECK(in_first_pass(tile));
  ++entry.version;
  entry.taken = false;
  --unfinished_;
  Sort(entry);
}

}  // namespace penstock::offload
