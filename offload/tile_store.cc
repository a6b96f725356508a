#include "offload/tile_store.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace penstock::offload {
TileStore::TileStore(const Layout& layout, const Schedule& schedule,
                     const TileStoreOptions& options, Slab& slab, StateFile& file)
    : layout_(layout),
      schedule_(schedule),
      options_(options),
      host_uses_(schedule),
      file_(file),
      weight_blocks_(slab, layout.WeightBytes(layout.largest_tile()),
                     options.weight_home == Tier::kNvme ? options.weight_blocks : 0),
      record_blocks_(slab, layout.RecordBytes(layout.largest_tile()),
                     options.record_home == Tier::kNvme ? options.record_blocks : 0),
      cache_(weight_blocks_, layout.tiles.size()),
      tiles_(layout.tiles.size()),
      updates_(schedule) {
  PENSTOCK_CHECK(options.weight_home != Tier::kNvme || options.weight_blocks >= 2);
  PENSTOCK_CHECK(options.record_home != Tier::kNvme || options.record_blocks >= 1);
  PENSTOCK_CHECK(options.host_tiles <= layout.tiles.size());
  in_host_memory_.resize(layout.tiles.size());
  for (size_t i = 0; i < options.host_tiles; ++i) {
    in_host_memory_[Index(schedule.update_order[i])] = true;
  }
  // What the device reads next keeps room for a module and a tile, or half of a small pool.
  ahead_limit_ =
      options.weight_blocks - std::min<size_t>(options.weight_blocks / 2, layout.most_tiles() + 1);
  home_weights_.resize(layout.tiles.size());
  home_records_.resize(layout.tiles.size());
  for (size_t i = 0; i < layout.tiles.size(); ++i) {
    const TileId tile{static_cast<uint32_t>(i)};
    if (!WeightOnDrive(tile)) home_weights_[i] = slab.Cut(WeightSize(tile));
    if (!RecordOnDrive(tile)) home_records_[i] = slab.Cut(RecordSize(tile));
  }
}

TileStore::~TileStore() {
  {
    MutexLock lock(mutex_);
    FailLocked(Error{ErrorCode::kCancelled, "the run ended"});
  }
  // Without the mutex, which completions take. A commit waits for the writes it names before it
  // returns, so what is left to be written belongs to none.
  file_.Cancel();
  MutexLock lock(mutex_);
  while (requests_ > 0) changed_.Wait(mutex_);
}

void TileStore::OnProgress(std::function<void()> callback) {
  MutexLock lock(mutex_);
  on_progress_ = std::move(callback);
}

std::span<std::byte> TileStore::WeightOf(TileId tile) {
  if (!WeightOnDrive(tile)) return home_weights_[Index(tile)];
  return {cache_[tile].block.data(), WeightSize(tile).value};
}

std::span<std::byte> TileStore::RecordOf(TileId tile) {
  if (!RecordOnDrive(tile)) return home_records_[Index(tile)];
  return {At(tile).record.data(), RecordSize(tile).value};
}

void TileStore::Changed() {
  changed_.NotifyAll();
  if (on_progress_) on_progress_();
}

void TileStore::FailLocked(const Error& error) {
  if (failure_.ok()) failure_ = error;
  Changed();
}

void TileStore::SubmitLocked(PartRequest request, std::function<void()> done) {
  ++requests_;
  request.on_complete = [this, done = std::move(done)](const Status& status) {
    MutexLock lock(mutex_);
    if (!status.ok()) FailLocked(status.error());
    done();
    if (failure_.ok()) {
      LoadUpdates();
      ReadAhead();
    }
    --requests_;
    Changed();
  };
  file_.Submit(std::move(request));
}

uint64_t TileStore::NeedAt(uint64_t use_time, TileId tile) const {
  const ModuleLayout& module = layout_.module(layout_.tile(tile).module);
  return use_time * layout_.tiles.size() + (Index(tile) - Index(module.first_tile));
}

uint64_t TileStore::NextNeed(TileId tile) {
  const uint64_t from = now_ + (At(tile).pinned_at == now_ ? 1 : 0);
  const bool updated = updates_.target(tile) > updates_.round();
  return NeedAt(host_uses_.Next(layout_.tile(tile).module, from, updated), tile);
}

BlockLease TileStore::TakeWeightBlock(uint64_t need) {
  mutex_.AssertHeld();
  return cache_.TakeBlock(need, [this](TileId tile) {
    mutex_.AssertHeld();
    return NextNeed(tile);
  });
}

void TileStore::StartWeightRead(TileId tile, BlockLease block, bool for_update) {
  WeightCache::Entry& entry = cache_[tile];
  entry.block = std::move(block);
  entry.reading = true;
  entry.verified = !options_.verify_checksums;
  const auto priority = for_update ? aio::Priority::kStateRead : aio::Priority::kParameterRead;
  SubmitLocked({.part = Part::kWeight,
                .tile = tile,
                .slot = At(tile).slot,
                .operation = aio::Operation::kRead,
                .buffer = WeightOf(tile),
                .priority = priority,
                .version = updates_.version(tile)},
               [this, tile]() {
                 mutex_.AssertHeld();
                 cache_[tile].reading = false;
               });
}

Status TileStore::FillTile(
    TileId tile, const std::function<Status(std::span<std::byte>, std::span<std::byte>)>& fill) {
  std::span<std::byte> weight;
  std::span<std::byte> record;
  {
    MutexLock lock(mutex_);
    PENSTOCK_CHECK(!started_, "tiles are filled before the first step");
    if (WeightOnDrive(tile)) {
      while (failure_.ok() && !cache_[tile].block.valid()) {
        // Nothing is used before the first step: any copy may go.
        cache_[tile].block = cache_.TakeBlock(0, [](TileId) { return uint64_t{1}; });
        if (!cache_[tile].block.valid()) changed_.Wait(mutex_);
      }
      cache_[tile].pins = 1;
    }
    if (RecordOnDrive(tile)) {
      while (failure_.ok() && !At(tile).record.valid()) {
        At(tile).record = record_blocks_.TryTake();
        if (!At(tile).record.valid()) changed_.Wait(mutex_);
      }
    }
    PENSTOCK_TRY(failure_);
    weight = WeightOf(tile);
    record = RecordOf(tile);
  }
  std::memset(weight.data(), 0, weight.size());
  std::memset(record.data(), 0, record.size());
  if (const Status filled = fill(weight, record); !filled.ok()) {
    MutexLock lock(mutex_);
    FailLocked(filled.error());
    return filled;
  }
  const uint64_t seed = TileSeed(file_.uuid(), tile, 0);
  const TileChecksums checksums{WeightChecksum(seed, weight),
                                RecordChecksum(seed, layout_, record)};
  MutexLock lock(mutex_);
  At(tile).checksums = checksums;
  if (WeightOnDrive(tile)) cache_[tile].pins = 0;
  StartWrites(tile);
  return failure_;
}

void TileStore::SetTime(uint64_t now) {
  MutexLock lock(mutex_);
  now_ = now;
  started_ = true;
  if (!failure_.ok()) return;
  LoadUpdates();
  ReadAhead();
}

void TileStore::ReadAhead() {
  if (options_.weight_home != Tier::kNvme || !started_) return;
  // Always from the present use on: what is needed soonest is read first and never evicted for what
  // is needed later.
  for (uint64_t use = now_ % schedule_.length(); use < schedule_.length(); ++use) {
    if (schedule_.uses[use].fetch && !ReadAheadFor(use)) return;
  }
}

bool TileStore::ReadAheadFor(uint64_t use) {
  const ModuleId id = schedule_.uses[use].module;
  const ModuleLayout& module = layout_.module(id);
  const uint64_t time = StepStart() + use;
  for (uint32_t i = 0; i < module.tile_count; ++i) {
    const TileId tile{static_cast<uint32_t>(Index(module.first_tile)) + i};
    if (!WeightOnDrive(tile)) continue;
    if (At(tile).pinned_at == time || cache_[tile].block.valid()) continue;
    if (updates_.version(tile) < updates_.target(tile)) {
      // The update will leave the weight in host memory for the first use; later uses wait for it.
      if (schedule_.first_use[Index(id)] == use) continue;
      return false;
    }
    BlockLease block = TakeWeightBlock(NeedAt(time, tile));
    if (!block.valid()) return false;
    StartWeightRead(tile, std::move(block), false);
  }
  return true;
}

Result<std::span<const std::byte>> TileStore::PinWeight(TileId tile) {
  std::span<const std::byte> weight;
  uint64_t expected = 0;
  uint64_t version = 0;
  int slot = 0;
  {
    MutexLock lock(mutex_);
    while (failure_.ok()) {
      if (updates_.version(tile) == updates_.target(tile)) {
        if (!WeightOnDrive(tile) || cache_[tile].present()) break;
        if (!cache_[tile].block.valid()) {
          BlockLease block = TakeWeightBlock(NeedAt(now_, tile));
          if (block.valid()) StartWeightRead(tile, std::move(block), false);
        }
      }
      changed_.Wait(mutex_);
    }
    PENSTOCK_TRY(failure_);
    weight = WeightOf(tile);
    if (!WeightOnDrive(tile)) return weight;
    At(tile).pinned_at = now_;
    ++cache_[tile].pins;
    if (cache_[tile].verified) return weight;
    expected = At(tile).checksums.weight;
    version = updates_.version(tile);
    slot = At(tile).slot;
  }
  const bool intact = WeightChecksum(TileSeed(file_.uuid(), tile, version), weight) == expected;
  MutexLock lock(mutex_);
  if (!intact) {
    --cache_[tile].pins;
    FailLocked(DamagedAt(Part::kWeight, tile, version, slot));
    return failure_.error();
  }
  cache_[tile].verified = true;
  return weight;
}

Error TileStore::DamagedAt(Part part, TileId tile, uint64_t version, int slot) const {
  return MakeError(
      ErrorCode::kCorruption,
      "checksum of tile {} (module {}) does not hold: version {}, read from {}; "
      "the drive gave other data than was written to it; check the drive, and see with "
      "penstock inspect what the last commit holds",
      Index(tile), layout_.module(layout_.tile(tile).module).name, version,
      file_.Where(part, tile, slot));
}

void TileStore::FailDamaged(const TileUpdate& update, const TileChecksums& found) {
  MutexLock lock(mutex_);
  const bool weight = update.expected_weight.value_or(found.weight) != found.weight;
  FailLocked(DamagedAt(weight ? Part::kWeight : Part::kRecord, update.tile, update.version,
                       At(update.tile).slot));
}

void TileStore::UnpinWeight(TileId tile) {
  MutexLock lock(mutex_);
  if (!WeightOnDrive(tile)) return;
  --cache_[tile].pins;
  PENSTOCK_CHECK(cache_[tile].pins >= 0);
  if (failure_.ok()) {
    LoadUpdates();
    ReadAhead();
  }
  Changed();
}

uint64_t TileStore::version() const {
  MutexLock lock(mutex_);
  return updates_.round();
}

uint64_t TileStore::evictions() const {
  MutexLock lock(mutex_);
  return cache_.evictions();
}

uint64_t TileStore::updates_finished() const {
  MutexLock lock(mutex_);
  return finished_;
}

uint64_t TileStore::written_back() const {
  MutexLock lock(mutex_);
  return written_back_;
}

}  // namespace penstock::offload
