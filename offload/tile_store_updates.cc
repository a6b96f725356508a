// The update side of TileStore: loading tiles for their update, taking them back, writing.
#include <algorithm>

#include "base/check.h"
#include "offload/tile_store.h"

namespace penstock::offload {

Status TileStore::BeginUpdates() {
  const Status prepared = file_.PrepareWrites();
  MutexLock lock(mutex_);
  if (!prepared.ok()) FailLocked(prepared.error());
  PENSTOCK_TRY(failure_);
  PENSTOCK_CHECK(take_.round == begun_ && take_.index == 0 && in_hand_ == 0,
                 "updates begun before the ones of version {} were finished", begun_);
  ++begun_;
  ahead_pins_ = 0;
  LoadUpdates();
  Changed();
  return {};
}

void TileStore::LoadUpdates() {
  bool loaded = false;
  while (started_ && load_.round <= begun_) {
    const TileId tile = schedule_.update_order[load_.index];
    const bool ahead = load_.round == begun_;
    // The update before, and its write-back, must be over: what is loaded is what was written.
    if (At(tile).version != load_.round || At(tile).writes > 0 || !LoadUpdate(tile, ahead)) break;
    Advance(load_);
    loaded = true;
  }
  if (loaded) Changed();
}

bool TileStore::LoadUpdate(TileId tile, bool ahead) {
  if (records_on_drive() && record_blocks_.free() == 0) return false;
  if (weights_on_drive() && ahead && ahead_pins_ >= ahead_limit_) return false;
  BlockLease weight;
  const bool weight_missing = weights_on_drive() && !cache_[tile].block.valid();
  if (weight_missing) {
    // Between two steps the update is due in the step that begins; otherwise in the next one.
    const bool next_step = ahead && now_ % schedule_.length() != 0;
    const uint64_t step_start = StepStart() + (next_step ? schedule_.length() : 0);
    const uint64_t first_use = schedule_.first_use[Index(layout_.tile(tile).module)];
    const bool urgent = draining_ && !ahead;
    weight = TakeWeightBlock(urgent ? 0 : NeedAt(step_start + first_use, tile));
    if (!weight.valid()) return false;
  }
  Tile& entry = At(tile);
  if (weights_on_drive()) {
    ++cache_[tile].pins;
    entry.weight_pinned = true;
    if (ahead) ++ahead_pins_;
    if (weight_missing) StartWeightRead(tile, std::move(weight), true);
  }
  if (records_on_drive()) StartRecordRead(tile, record_blocks_.TryTake());
  entry.loaded = true;
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
                .version = entry.version},
               [this, tile]() {
                 mutex_.AssertHeld();
                 At(tile).record_reading = false;
               });
}

std::optional<TileUpdate> TileStore::TryTakeUpdate() {
  MutexLock lock(mutex_);
  if (!failure_.ok() || take_.round >= begun_) return std::nullopt;
  const TileId tile = schedule_.update_order[take_.index];
  Tile& entry = At(tile);
  if (entry.version != take_.round || !entry.loaded || entry.record_reading) return std::nullopt;
  // The device may still be copying the old weight out of the block.
  if (weights_on_drive() && (!cache_[tile].present() || cache_[tile].pins > 1)) return std::nullopt;
  Advance(take_);
  ++in_hand_;
  entry.loaded = false;
  TileUpdate update{.tile = tile,
                    .version = entry.version,
                    .weight = WeightOf(tile),
                    .record = RecordOf(tile),
                    .seed_before = TileSeed(file_.uuid(), tile, entry.version),
                    .seed_after = TileSeed(file_.uuid(), tile, entry.version + 1)};
  if (weights_on_drive() && !cache_[tile].verified) {
    update.expected_weight = entry.checksums.weight;
  }
  if (records_on_drive() && options_.verify_checksums) {
    update.expected_record = entry.checksums.record;
  }
  return update;
}

void TileStore::FinishUpdate(const TileUpdate& update, const TileChecksums& after) {
  MutexLock lock(mutex_);
  Tile& entry = At(update.tile);
  entry.version = update.version + 1;
  entry.slot = file_.WriteSlot(update.tile);
  entry.checksums = after;
  --in_hand_;
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
                  .version = entry.version},
                 [this, tile, size = buffer.size(), done = std::move(done)]() {
                   mutex_.AssertHeld();
                   --At(tile).writes;
                   --writes_;
                   if (started_) written_back_ += size;
                   done();
                 });
  };
  if (weights_on_drive()) {
    cache_[tile].writing = true;
    write(Part::kWeight, WeightOf(tile), [this, tile]() {
      mutex_.AssertHeld();
      cache_[tile].writing = false;
    });
  }
  if (records_on_drive()) {
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
