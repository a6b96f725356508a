#include "offload/tile_store.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "base/check.h"
#include "offload/tile_spread.h"

namespace penstock::offload {
namespace {

/// A filling without memory fails, so that waits for its block end.
Status FillParts(const std::function<Status(std::span<std::byte>, std::span<std::byte>)>& fill,
                 std::span<std::byte> weight, std::span<std::byte> record) {
  try {
    return fill(weight, record);
  } catch (const std::bad_alloc&) {
    return MakeError(ErrorCode::kOutOfMemory, "the host has no memory left");
  }
}

}  // namespace

TilePolicyOptions PolicyOptions(const ShardLayout& layout, const TileStoreOptions& options) {
  PENSTOCK_CHECK(options.host_tiles <= layout.tiles.size());
  TilePolicyOptions policy{
      .homes = std::vector<TileHome>(layout.tiles.size(),
                                     {.weight_on_drive = options.weight_home == Tier::kNvme,
                                      .record_on_drive = options.record_home == Tier::kNvme}),
      .weight_blocks = options.weight_blocks,
      .record_blocks = options.record_blocks,
      .passes = options.passes};
  const std::vector<TileId> of_host = HostTileOrder(layout);
  for (size_t i = 0; i < options.host_tiles; ++i) policy.homes[Index(of_host[i])] = {false, false};
  for (const TileId tile : layout.Tiles()) {
    if (layout.frozen(tile)) policy.homes[Index(tile)].record_on_drive = false;  // there is none
  }
  // What the device reads next keeps room for a module and a tile, or half of a small pool.
  policy.ahead_limit =
      options.weight_blocks - std::min<size_t>(options.weight_blocks / 2, layout.most_tiles() + 1);
  return policy;
}

TileStore::TileStore(const ShardLayout& layout, const Schedule& schedule,
                     const TileStoreOptions& options, Slab& slab, StateFile& file)
    : TileStore(layout, schedule, options, PolicyOptions(layout, options), slab, file) {}

TileStore::TileStore(const ShardLayout& layout, const Schedule& schedule,
                     const TileStoreOptions& options, const TilePolicyOptions& policy, Slab& slab,
                     StateFile& file)
    : layout_(layout),
      options_(options),
      homes_(policy.homes),
      file_(file),
      weight_blocks_(slab, layout.largest_weight(),
                     options.weight_home == Tier::kNvme ? options.weight_blocks : 0),
      record_blocks_(slab, layout.largest_record(),
                     options.record_home == Tier::kNvme ? options.record_blocks : 0),
      tiles_(layout.tiles.size()),
      schedule_(&schedule),
      policy_(layout, schedule, policy) {
  PENSTOCK_CHECK(options.weight_home != Tier::kNvme || options.weight_blocks >= 2);
  PENSTOCK_CHECK(options.record_home != Tier::kNvme || options.record_blocks >= 1);
  home_weights_.resize(layout.tiles.size());
  home_records_.resize(layout.tiles.size());
  // One behind the other, which are registered as one.
  std::span<std::byte> weights;
  std::span<std::byte> records;
  const auto cut = [&slab](Bytes size, std::span<std::byte>& all) {
    const std::span<std::byte> part = slab.Cut(size);
    all = {all.empty() ? part.data() : all.data(), part.data() + part.size()};
    return part;
  };
  for (const TileId tile : layout.Tiles()) {
    if (WeightOnDrive(tile)) continue;
    home_weights_[Index(tile)] = cut(layout.WeightBytes(tile), weights);
  }
  for (const TileId tile : layout.Tiles()) {
    if (RecordOnDrive(tile)) continue;
    home_records_[Index(tile)] = cut(layout.RecordBytes(tile), records);
  }
  home_memory_ = {weights, records};
  for (const std::span<std::byte> part : {weight_blocks_.memory(), weights}) {
    if (!part.empty()) weight_memory_.push_back(part);
  }
}

TileStore::~TileStore() {
  {
    MutexLock lock(mutex_);
    FailLocked(Error{ErrorCode::kCancelled, "the run ended"});
  }
  // Called without the mutex, which completions take. A commit waits for the writes it names before
  // it returns, so the remaining writes belong to none.
  file_.Cancel();
  MutexLock lock(mutex_);
  while (requests_ > 0) idle_.Wait(mutex_);
}

std::vector<std::span<std::byte>> TileStore::block_memory() const {
  MutexLock lock(mutex_);
  return {weight_blocks_.memory(), record_blocks_.memory()};
}

std::vector<std::span<std::byte>> TileStore::state_memory() const {
  std::vector<std::span<std::byte>> memory = block_memory();
  memory.insert(memory.end(), home_memory_.begin(), home_memory_.end());
  return memory;
}

void TileStore::OnWork(std::function<void(size_t)> callback) {
  MutexLock lock(mutex_);
  on_work_ = std::move(callback);
}

std::span<std::byte> TileStore::WeightOf(TileId tile) {
  if (!WeightOnDrive(tile)) return home_weights_[Index(tile)];
  return {At(tile).weight.data(), layout_.WeightBytes(tile).value};
}

std::span<std::byte> TileStore::RecordOf(TileId tile) {
  if (!RecordOnDrive(tile)) return home_records_[Index(tile)];
  return {At(tile).record.data(), layout_.RecordBytes(tile).value};
}

void TileStore::Advance() {
  if (!failure_.ok()) return;
  for (const TileAction& action : policy_.TakeActions()) CarryOut(action);
  const TileWakes wakes = policy_.TakeWakes();
  if (wakes.device) can_pin_.NotifyOne();
  if (wakes.settled) settled_.NotifyAll();
  if (wakes.filling) can_fill_.NotifyAll();
  if (wakes.updates > 0 && on_work_) on_work_(wakes.updates);
}

void TileStore::CarryOut(const TileAction& action) {
  Tile& entry = At(action.tile);
  switch (action.kind) {
    case TileAction::Kind::kEvictWeight:
      entry.weight.Reset();
      break;
    case TileAction::Kind::kReadWeight:
    case TileAction::Kind::kReadWeightForUpdate:
      entry.weight = weight_blocks_.TryTake();
      entry.weight_verified = !options_.verify_checksums;
      StartRead(Part::kWeight, action.tile,
                action.kind == TileAction::Kind::kReadWeight ? aio::Priority::kParameterRead
                                                             : aio::Priority::kStateRead);
      break;
    case TileAction::Kind::kReadRecord:
      entry.record = record_blocks_.TryTake();
      StartRead(Part::kRecord, action.tile, aio::Priority::kStateRead);
      break;
    case TileAction::Kind::kEvictRecord:
      entry.record.Reset();
      break;
  }
}

void TileStore::FailLocked(const Error& error) {
  if (failure_.ok()) failure_ = error;
  for (CondVar* waiters : {&can_pin_, &settled_, &can_fill_}) waiters->NotifyAll();
  if (on_work_) on_work_(layout_.tiles.size());
}

void TileStore::Submit(PartRequest request, std::function<void()> done) {
  ++requests_;
  request.version = policy_.updates().version(request.tile);
  request.slot = At(request.tile).slot;
  request.on_complete = [this, done = std::move(done)](const Status& status) {
    MutexLock lock(mutex_);
    if (!status.ok()) FailLocked(status.error());
    done();
    Advance();
    if (--requests_ == 0) idle_.NotifyAll();
  };
  file_.Submit(std::move(request));
}

void TileStore::StartRead(Part part, TileId tile, aio::Priority priority) {
  Submit({.part = part,
          .tile = tile,
          .operation = aio::Operation::kRead,
          .buffer = part == Part::kWeight ? WeightOf(tile) : RecordOf(tile),
          .priority = priority},
         [this, part, tile]() {
           mutex_.AssertHeld();
           part == Part::kWeight ? WeightArrived(tile) : policy_.RecordRead(tile);
         });
}

void TileStore::StartWrite(Part part, TileId tile, void (TilePolicy::*done)(TileId)) {
  const std::span<std::byte> buffer = part == Part::kWeight ? WeightOf(tile) : RecordOf(tile);
  Submit({.part = part,
          .tile = tile,
          .operation = aio::Operation::kWrite,
          .buffer = buffer,
          .priority = aio::Priority::kWriteBack},
         [this, part, tile, done, size = buffer.size()]() {
           mutex_.AssertHeld();
           if (part == Part::kRecord) At(tile).record.Reset();
           if (policy_.started()) written_back_ += size;
           (policy_.*done)(tile);
         });
}

void TileStore::StartWrites(TileId tile) {
  if (WeightOnDrive(tile)) StartWrite(Part::kWeight, tile, &TilePolicy::WeightWritten);
  if (RecordOnDrive(tile)) StartWrite(Part::kRecord, tile, &TilePolicy::RecordWritten);
}

Status TileStore::FillTile(
    TileId tile, const std::function<Status(std::span<std::byte>, std::span<std::byte>)>& fill) {
  std::span<std::byte> weight;
  std::span<std::byte> record;
  {
    MutexLock lock(mutex_);
    while (failure_.ok() && !policy_.TryBeginFill(tile)) can_fill_.Wait(mutex_);
    PENSTOCK_TRY(failure_);
    Advance();
    Tile& entry = At(tile);
    if (WeightOnDrive(tile) && !entry.weight.valid()) entry.weight = weight_blocks_.TryTake();
    if (RecordOnDrive(tile)) entry.record = record_blocks_.TryTake();
    weight = WeightOf(tile);
    record = RecordOf(tile);
  }
  std::memset(weight.data(), 0, weight.size());
  std::memset(record.data(), 0, record.size());
  if (Status filled = FillParts(fill, weight, record); !filled.ok()) {
    MutexLock lock(mutex_);
    FailLocked(filled.error());
    return filled;
  }
  const TileChecksums checksums = ChecksumsOf(file_.uuid(), layout_, tile, 0, weight, record);
  MutexLock lock(mutex_);
  At(tile).checksums = checksums;
  policy_.FinishFill(tile);
  StartWrites(tile);
  return failure_;
}

void TileStore::SetTime(uint64_t now) {
  MutexLock lock(mutex_);
  policy_.SetTime(now);
  Advance();
}

void TileStore::SetSchedule(const Schedule& schedule) {
  MutexLock lock(mutex_);
  schedule_ = &schedule;
  policy_.SetSchedule(schedule);
  Advance();
}

void TileStore::EndAfterThisStep() {
  MutexLock lock(mutex_);
  policy_.EndAfterThisStep();
}

Status TileStore::AwaitPin(TileId tile) {
  while (failure_.ok() && !policy_.TryPin(tile)) {
    Advance();
    can_pin_.Wait(mutex_);
  }
  return failure_;
}

Result<PinnedWeights> TileStore::PinWeights(IdRange<TileId> tiles, Bytes most) {
  PENSTOCK_CHECK(tiles.size() > 0);
  std::vector<std::span<const std::byte>> weights;
  MutexLock lock(mutex_);
  PENSTOCK_TRY(AwaitPin(tiles[0]));
  Bytes size;
  for (const TileId tile : tiles) {
    size += layout_.WeightBytes(tile);
    const bool first = weights.empty();  // is pinned
    if (!first && (size > most || !policy_.CanPin(tile) || !policy_.TryPin(tile))) break;
    PENSTOCK_CHECK(!WeightOnDrive(tile) || At(tile).weight_verified,
                   "tile {} is pinned before its checksum was compared", Index(tile));
    weights.emplace_back(WeightOf(tile));
  }
  const size_t count = weights.size();
  return LeaseOf(tiles.Part(0, count), std::move(weights));
}

PinnedWeights TileStore::LeaseOf(IdRange<TileId> tiles,
                                 std::vector<std::span<const std::byte>> weights) {
  bool on_drive = false;
  for (const TileId tile : tiles) on_drive = on_drive || WeightOnDrive(tile);
  return {on_drive ? this : nullptr, tiles, std::move(weights)};
}

Error TileStore::DamagedAt(Part part, TileId tile, uint64_t version, int slot) const {
  Error error = DamagedPart(layout_, part, tile, version, file_.Where(part, tile, slot));
  error.message += ", and see with penstock inspect what the last commit holds";
  return error;
}

void TileStore::Unpin(IdRange<TileId> tiles) {
  MutexLock lock(mutex_);
  for (const TileId tile : tiles) policy_.Unpin(tile);
  Advance();
}

uint64_t TileStore::version() const {
  MutexLock lock(mutex_);
  return policy_.updates().round();
}

uint64_t TileStore::evictions() const {
  MutexLock lock(mutex_);
  return policy_.evictions();
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
