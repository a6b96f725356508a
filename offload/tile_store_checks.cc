// TileStore and weights that were read for the device: optimizer threads compare each with its
// checksum before it can be pinned, so that the thread that feeds the device hashes nothing.
#include "base/check.h"
#include "offload/tile_store.h"

namespace penstock::offload {

/// A tile whose update has begun is not pinned before it is updated, and the update hashes what it
/// reads while that is in the cache.
void TileStore::WeightArrived(TileId tile) {
  const UpdateQueue& updates = policy_.updates();
  const bool update_comes_first = updates.version(tile) < updates.target(tile);
  if (!failure_.ok() || At(tile).weight_verified || update_comes_first) {
    policy_.WeightRead(tile);
    return;
  }
  arrived_.push_back(tile);
  if (on_work_) on_work_(1);
}

std::optional<ReadWeight> TileStore::TryTakeRead() {
  MutexLock lock(mutex_);
  if (!failure_.ok() || arrived_.empty()) return std::nullopt;
  const TileId tile = arrived_.front();
  arrived_.pop_front();
  const uint64_t version = policy_.updates().version(tile);
  return ReadWeight{.tile = tile,
                    .version = version,
                    .weight = WeightOf(tile),
                    .seed = TileSeed(file_.uuid(), layout_, tile, version),
                    .expected = At(tile).checksums.weight};
}

void TileStore::FinishRead(const ReadWeight& read, uint64_t found) {
  MutexLock lock(mutex_);
  Tile& entry = At(read.tile);
  if (found != read.expected) {
    FailLocked(DamagedAt(Part::kWeight, read.tile, read.version, entry.slot));
    return;
  }
  entry.weight_verified = true;
  policy_.WeightRead(read.tile);
  Advance();
}

}  // namespace penstock::offload
