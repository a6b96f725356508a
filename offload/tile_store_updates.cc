// The update side of TileStore: loading tiles for their update, taking them back, writing.
#include <utility>

#include "base/check.h"
#include "offload/tile_store.h"

namespace penstock::offload {

Status TileStore::PrepareUpdates() {
  const Status prepared = file_.PrepareWrites();
  MutexLock lock(mutex_);
  if (!prepared.ok()) FailLocked(prepared.error());
  return failure_;
}

void TileStore::BeginLocked(TileId tile) {
  updates_.Begin(tile);
  if (std::exchange(At(tile).ahead_pinned, false)) --ahead_pins_;
}

void TileStore::BeginUpdate(TileId tile) {
  MutexLock lock(mutex_);
  if (!failure_.ok()) return;
  BeginLocked(tile);
  LoadUpdates();
  Changed();
}

void TileStore::BeginUpdates() {
  MutexLock lock(mutex_);
  if (!failure_.ok()) return;
  for (const TileId tile : schedule_.update_order) BeginLocked(tile);
  LoadUpdates();
  Changed();
}

void TileStore::LoadUpdates() {
  if (!started_) return;
  const bool loaded = updates_.LoadMore([this](TileId tile, bool ahead) {
    mutex_.AssertHeld();
    // What is loaded is what was written.
    return At(tile).writes == 0 && LoadUpdate(tile, ahead);
  });
  if (loaded) Changed();
}

/// When the update needs the weight: ahead of it where it begins. Once it has begun, where the
/// updated weight is used in this step, or at once where that is in the next one: then nothing
/// waits for it but the drive, which must not run out of work.
uint64_t TileStore::UpdateNeed(TileId tile, bool ahead) const {
  const ModuleId module = layout_.tile(tile).module;
  const uint64_t now = now_ % schedule_.length();
  if (ahead) {
    const uint64_t at = schedule_.update_at[Index(module)];
    return NeedAt(StepStart() + at + (at < now ? schedule_.length() : 0), tile);
  }
  if (draining_) return 0;
  const uint64_t first = schedule_.first_use[Index(module)];
  return NeedAt(first < now ? now_ + 1 : StepStart() + first, tile);
}

bool TileStore::LoadUpdate(TileId tile, bool ahead) {
  if (RecordOnDrive(tile) && record_blocks_.free() == 0) return false;
  if (WeightOnDrive(tile) && ahead && ahead_pins_ >= ahead_limit_) return false;
  BlockLease weight;
  const bool weight_missing = WeightOnDrive(tile) && !cache_[tile].block.valid();
  if (weight_missing) {
    weight = TakeWeightBlock(UpdateNeed(tile, ahead));
    if (!weight.valid()) return false;
  }
  Tile& entry = At(tile);
  if (WeightOnDrive(tile)) {
    ++cache_[tile].pins;
    entry.weight_pinned = true;
    entry.ahead_pinned = ahead;
    if (ahead) ++ahead_pins_;
    if (weight_missing) StartWeightRead(tile, std::move(weight), true);
  }
  if (RecordOnDrive(tile)) StartRecordRead(tile, record_blocks_.TryTake());
  return true;
}

void TileStore::StartRecordRead(TileId tile, BlockLease block) {
  Tile& entry = At(tile);
  entry.record = std::move(block);
  entry.record_reading = true;
  SubmitLocked({.part = Part::kRecord,
                .tile = tile,
                .slot = entry.slot,
                .operation = aio::Operation::kRead,
                .buffer = RecordOf(tile),
                .priority = aio::Priority::kStateRead,
                .version = updates_.version(tile)},
               [this, tile]() {
                 mutex_.AssertHeld();
                 At(tile).record_reading = false;
               });
}

bool TileStore::IsThere(TileId tile) {
  if (At(tile).record_reading) return false;
  // The device may still be copying the old weight out of the block.
  return !WeightOnDrive(tile) || (cache_[tile].present() && cache_[tile].pins == 1);
}

std::optional<TileUpdate> TileStore::TryTakeUpdate() {
  MutexLock lock(mutex_);
  if (!failure_.ok()) return std::nullopt;
  const std::optional<TileId> next = updates_.Take([this](TileId tile) {
    mutex_.AssertHeld();
    return IsThere(tile);
  });
  if (!next) return std::nullopt;
  const TileId tile = *next;
  const Tile& entry = At(tile);
  const uint64_t version = updates_.version(tile);
  TileUpdate update{.tile = tile,
                    .version = version,
                    .weight = WeightOf(tile),
                    .record = RecordOf(tile),
                    .seed_before = TileSeed(file_.uuid(), tile, version),
                    .seed_after = TileSeed(file_.uuid(), tile, version + 1)};
  if (WeightOnDrive(tile) && !cache_[tile].verified) {
    update.expected_weight = entry.checksums.weight;
  }
  if (RecordOnDrive(tile) && options_.verify_checksums) {
    update.expected_record = entry.checksums.record;
  }
  return update;
}

void TileStore::FinishUpdate(const TileUpdate& update, const TileChecksums& after) {
  MutexLock lock(mutex_);
  Tile& entry = At(update.tile);
  updates_.Finish(update.tile);
  entry.slot = file_.WriteSlot(update.tile);
  entry.checksums = after;
  ++finished_;
  if (entry.weight_pinned) {
    entry.weight_pinned = false;
    --cache_[update.tile].pins;
    cache_[update.tile].verified = true;
  }
  if (failure_.ok()) {
    StartWrites(update.tile);
    LoadUpdates();
    ReadAhead();
  }
  Changed();
}

void TileStore::StartWrites(TileId tile) {
  Tile& entry = At(tile);
  const auto write = [&](Part part, std::span<std::byte> buffer, std::function<void()> done) {
    mutex_.AssertHeld();
    ++entry.writes;
    ++writes_;
    SubmitLocked({.part = part,
                  .tile = tile,
                  .slot = entry.slot,
                  .operation = aio::Operation::kWrite,
                  .buffer = buffer,
                  .priority = aio::Priority::kWriteBack,
                  .version = updates_.version(tile)},
                 [this, tile, size = buffer.size(), done = std::move(done)]() {
                   mutex_.AssertHeld();
                   --At(tile).writes;
                   --writes_;
                   if (started_) written_back_ += size;
                   done();
                 });
  };
  if (WeightOnDrive(tile)) {
    cache_[tile].writing = true;
    write(Part::kWeight, WeightOf(tile), [this, tile]() {
      mutex_.AssertHeld();
      cache_[tile].writing = false;
    });
  }
  if (RecordOnDrive(tile)) {
    write(Part::kRecord, RecordOf(tile), [this, tile]() {
      mutex_.AssertHeld();
      At(tile).record.Reset();
    });
  }
}

Status TileStore::Drain() {
  MutexLock lock(mutex_);
  draining_ = true;
  if (failure_.ok()) LoadUpdates();
  while (failure_.ok() && !updates_written()) changed_.Wait(mutex_);
  draining_ = false;
  // Weights that the next uses expected in memory may have been given up meanwhile.
  if (failure_.ok()) ReadAhead();
  return failure_;
}

}  // namespace penstock::offload
