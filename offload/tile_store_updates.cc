// The update side of TileStore: hands out tiles for their update and takes them back.
#include "base/check.h"
#include "offload/tile_store.h"

namespace penstock::offload {

Status TileStore::PrepareUpdates() {
  const Status prepared = file_.PrepareWrites();
  MutexLock lock(mutex_);
  if (!prepared.ok()) FailLocked(prepared.error());
  return failure_;
}

void TileStore::BeginUpdate(TileId tile) {
  MutexLock lock(mutex_);
  if (!failure_.ok()) return;
  policy_.Begin(tile);
  Advance();
}

void TileStore::BeginUpdates() {
  MutexLock lock(mutex_);
  if (policy_.updates().unfinished() > 0) DrainLocked();
  if (!failure_.ok()) return;
  for (const TileId tile : schedule_->update_order) policy_.Begin(tile);
  Advance();
}

/// As if draining: until it has ended, new weights are not used.
Status TileStore::MakeFirstPass() {
  BeginUpdates();
  return Drain();
}

std::optional<TileUpdate> TileStore::TryTakeUpdate() {
  MutexLock lock(mutex_);
  if (!failure_.ok()) return std::nullopt;
  const std::optional<TileId> next = policy_.TakeUpdate();
  if (!next) return std::nullopt;
  const TileId tile = *next;
  const Tile& entry = At(tile);
  const uint64_t version = policy_.updates().version(tile);
  TileUpdate update{.tile = tile,
                    .first_pass = policy_.updates().in_first_pass(tile),
                    .version = version,
                    .weight = WeightOf(tile),
                    .record = RecordOf(tile),
                    .seed_before = TileSeed(file_.uuid(), layout_, tile, version),
                    .seed_after = TileSeed(file_.uuid(), layout_, tile, version + 1),
                    .lease = {this, tile}};
  const bool compares_home = ComparesHome(tile, version);
  if (WeightOnDrive(tile) ? !entry.weight_verified : compares_home) {
    update.expected_weight = entry.checksums.weight;
  }
  if (RecordOnDrive(tile) ? options_.verify_checksums : compares_home) {
    update.expected_record = entry.checksums.record;
  }
  return update;
}

/// Every home comes to its turn in as many updates. What a commit writes is compared by itself.
bool TileStore::ComparesHome(TileId tile, uint64_t version) const {
  return options_.verify_checksums && (version + Index(tile)) % kHomeTilesPerComparison == 0;
}

void TileStore::FinishFirstPass(TileUpdate& update) {
  PENSTOCK_CHECK(std::exchange(update.lease.store_, nullptr) == this,
                 "a pass is finished that was given back");
  MutexLock lock(mutex_);
  At(update.tile).weight_verified = true;
  policy_.FinishFirstPass(update.tile);
  Advance();
}

void TileStore::FinishUpdate(TileUpdate& update, const TileChecksums& after) {
  PENSTOCK_CHECK(std::exchange(update.lease.store_, nullptr) == this,
                 "an update is finished that was given back");
  MutexLock lock(mutex_);
  policy_.FinishUpdate(update.tile);
  Tile& entry = At(update.tile);
  entry.slot = file_.WriteSlot(update.tile);
  entry.checksums = after;
  entry.weight_verified = true;
  ++finished_;
  if (!failure_.ok()) return;
  StartWrites(update.tile);
  Advance();
}

void TileStore::GiveBack(TileId tile) {
  MutexLock lock(mutex_);
  policy_.GiveBack(tile);
  Advance();
}

void TileStore::FailDamaged(const TileUpdate& update, const TileChecksums& found) {
  MutexLock lock(mutex_);
  const bool weight = update.expected_weight.value_or(found.weight) != found.weight;
  const Part part = weight ? Part::kWeight : Part::kRecord;
  if (weight ? WeightOnDrive(update.tile) : RecordOnDrive(update.tile)) {
    FailLocked(DamagedAt(part, update.tile, update.version, At(update.tile).slot));
  } else {
    FailLocked(DamagedInMemory(layout_, part, update.tile, update.version));
  }
}

void TileStore::WaitUntilSettled() {
  while (failure_.ok() && !policy_.settled()) settled_.Wait(mutex_);
}

void TileStore::DrainLocked() {
  policy_.SetDraining(true);
  Advance();
  WaitUntilSettled();
  policy_.SetDraining(false);
  // Weights that the next uses expected in memory may have been given up meanwhile.
  Advance();
}

Status TileStore::Drain() {
  MutexLock lock(mutex_);
  DrainLocked();
  return failure_;
}

}  // namespace penstock::offload
