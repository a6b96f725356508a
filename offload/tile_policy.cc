#include "offload/tile_policy.h"

#include <algorithm>

#include "base/check.h"

namespace penstock::offload {

TilePolicy::TilePolicy(const ShardLayout& layout, const Schedule& schedule,
                       TilePolicyOptions options)
    : layout_(layout),
      schedule_(&schedule),
      fetches_(schedule),
      homes_(std::move(options.homes)),
      record_blocks_(options.record_blocks),
      ahead_limit_(options.ahead_limit),
      free_weight_blocks_(options.weight_blocks),
      free_record_blocks_(options.record_blocks),
      updates_(schedule, layout.tiles.size(), options.passes),
      tiles_(layout.tiles.size()) {
  PENSTOCK_CHECK(homes_.size() == tiles_.size());
  for (size_t i = 0; i < tiles_.size(); ++i) {
    tiles_[i].next_fetch = fetches_.Next(layout.tiles[i].module, 0);
  }
}

TilePolicy::Need TilePolicy::NeedAt(uint64_t time, TileId tile) const {
  return NeedAt(time) + (Index(tile) - layout_.first_tile[Index(ModuleOf(tile))]);
}

/// A late pin comes before all that is planned: else what the plan needs sooner could hold every
/// block while the device waits.
TilePolicy::Need TilePolicy::PinNeed(TileId tile) const {
  const bool late = At(tile).next_fetch != now_;
  return late ? 0 : NeedAt(now_, tile);
}

/// Returns when a copy is needed next: by the device, or before that by an update, which once begun
/// waits only for room.
TilePolicy::NextUse TilePolicy::NextUseOf(TileId tile) const {
  if (updates_.version(tile) < updates_.target(tile)) return {UpdateNeed(tile, false), true};
  const uint64_t fetch = At(tile).next_fetch;
  const uint64_t step = schedule_->length();
  const size_t module = Index(ModuleOf(tile));
  const bool in_this_step = fetch % step != schedule_->first_use[module] || fetch < step;
  const uint64_t update = fetch / step * step - step + schedule_->update_at[module];
  if (layout_.frozen(tile) || in_this_step || At(tile).updated || fetch <= update)
    return {NeedAt(fetch, tile), false};
  return {NeedAt(update, tile), true};
}

/// Returns when the update needs the weight: `ahead` of its begin, when it begins. Once it has
/// begun, when the device pins what it waits for; otherwise at the use of the updated weight in
/// this step, or at once if that use is in the next step: then only the drive waits for it, which
/// must not run out of work.
TilePolicy::Need TilePolicy::UpdateNeed(TileId tile, bool ahead) const {
  const size_t module = Index(ModuleOf(tile));
  const uint64_t now = now_ % schedule_->length();
  if (ahead) {
    const uint64_t at = schedule_->update_at[module];
    return NeedAt(StepStart() + at + (at < now ? schedule_->length() : 0), tile);
  }
  if (draining_) return 0;
  if (pinning_ == tile) return PinNeed(tile);
  const uint64_t first = schedule_->first_use[module];
  return NeedAt(first < now ? now_ + 1 : StepStart() + first, tile);
}

/// Puts the tile in its place in every order; to be called after each change of its state.
void TilePolicy::Sort(TileId tile) {
  Tile& entry = At(tile);
  const auto number = static_cast<uint32_t>(Index(tile));
  const auto place = [number](Order& order, std::optional<Need>& key, std::optional<Need> now) {
    if (key == now) return;
    if (key) order.erase({*key, number});
    if (now) order.insert({*now, number});
    key = now;
  };
  const bool on_drive = WeightOnDrive(tile);
  const bool there = !on_drive || entry.weight == Copy::kThere;
  std::optional<Need> by_device;
  std::optional<Need> by_update;
  const bool in_use = entry.weight_writing || entry.pins > 0 || pinning_ == tile;
  if (on_drive && there && !in_use) {
    const NextUse next = NextUseOf(tile);
    (next.by_update ? by_update : by_device) = next.need;
  }
  place(by_device_, entry.by_device, by_device);
  place(by_update_, entry.by_update, by_update);
  std::optional<Need> wanted;
  const bool current = updates_.version(tile) == updates_.target(tile);
  if (on_drive && entry.weight == Copy::kNone && current) wanted = NeedAt(entry.next_fetch, tile);
  place(wanted_, entry.wanted, wanted);
  std::optional<Need> ahead;
  if (entry.record == Copy::kThere && updates_.loaded_ahead(tile)) ahead = UpdateNeed(tile, true);
  place(ahead_records_, entry.ahead, ahead);
  // The device may still be copying the old weight out of the block.
  updates_.SetReady(tile, there && (!on_drive || (entry.pins == 1 && entry.update_pins)) &&
                              (!RecordOnDrive(tile) || entry.record == Copy::kThere));
}

bool TilePolicy::TryBeginFill(TileId tile) {
  PENSTOCK_CHECK(!started_, "tiles are filled before the first step");
  const bool needs_weight = WeightOnDrive(tile) && At(tile).weight == Copy::kNone;
  if ((RecordOnDrive(tile) && free_record_blocks_ == 0) || (needs_weight && !TakeWeightBlock(0))) {
    filler_waits_ = true;
    return false;
  }
  Tile& entry = At(tile);
  if (RecordOnDrive(tile)) {
    --free_record_blocks_;
    entry.record = Copy::kThere;
  }
  if (WeightOnDrive(tile)) {
    entry.weight = Copy::kThere;
    ++entry.pins;
  }
  Sort(tile);
  return true;
}

void TilePolicy::FinishFill(TileId tile) {
  if (WeightOnDrive(tile)) --At(tile).pins;
  BeginWrites(tile);
}

void TilePolicy::SetTime(uint64_t now) {
  PassUses(now_, now);
  now_ = now;
  if (!started_) {
    started_ = true;
    for (const TileId tile : layout_.Tiles()) Sort(tile);
  }
  Advance();
}

void TilePolicy::SetSchedule(const Schedule& schedule) {
  if (end_ != kNoEnd) {
    const uint64_t steps_left = (end_ - std::min(end_, StepStart())) / schedule_->length();
    end_ = steps_left * schedule.length();
  }
  schedule_ = &schedule;
  fetches_ = Fetches(schedule);
  updates_.SetSchedule(schedule);
  now_ = 0;
  for (const TileId tile : layout_.Tiles()) {
    At(tile).next_fetch = fetches_.Next(ModuleOf(tile), 0);
    Sort(tile);
  }
  Advance();
}

void TilePolicy::EndAfterThisStep() {
  end_ = StepStart() + schedule_->length();
  updates_.EndAfterThisRound();
}

/// What was not pinned when its use came is needed at the next one. A step has nothing that it does
/// not use, so that looking at one step's uses is enough.
void TilePolicy::PassUses(uint64_t from, uint64_t to) {
  for (uint64_t use = std::max(from, to - std::min(to, schedule_->length())); use < to; ++use) {
    const ScheduledUse& passed = schedule_->uses[use % schedule_->length()];
    if (!passed.fetch) continue;
    for (const TileId tile : layout_.TilesOf(passed.module)) {
      if (At(tile).next_fetch >= to) continue;
      At(tile).next_fetch = fetches_.Next(ModuleOf(tile), to);
      Sort(tile);
    }
  }
}

bool TilePolicy::CanPin(TileId tile) const {
  if (updates_.version(tile) != updates_.target(tile)) return false;
  return !WeightOnDrive(tile) || At(tile).weight == Copy::kThere;
}

bool TilePolicy::TryPin(TileId tile) {
  const std::optional<TileId> before = std::exchange(pinning_, tile);
  if (before && before != tile) Sort(*before);
  device_waits_ = !CanPin(tile);
  if (device_waits_) {
    Advance();
    return false;
  }
  pinning_.reset();
  Tile& entry = At(tile);
  entry.updated = false;
  entry.next_fetch = fetches_.Next(ModuleOf(tile), now_ + 1);
  if (WeightOnDrive(tile)) ++entry.pins;
  Sort(tile);
  return true;
}

void TilePolicy::Unpin(TileId tile) {
  if (!WeightOnDrive(tile)) return;
  Tile& entry = At(tile);
  PENSTOCK_CHECK(entry.pins > (entry.update_pins ? 1U : 0U), "tile {} was not pinned", Index(tile));
  --entry.pins;
  Sort(tile);
  Advance();
}

void TilePolicy::WeightRead(TileId tile) {
  PENSTOCK_CHECK(At(tile).weight == Copy::kReading);
  At(tile).weight = Copy::kThere;
  Sort(tile);
  Advance();
}

void TilePolicy::RecordRead(TileId tile) {
  PENSTOCK_CHECK(At(tile).record == Copy::kReading);
  At(tile).record = Copy::kThere;
  Sort(tile);
  Advance();
}

void TilePolicy::WeightWritten(TileId tile) {
  At(tile).weight_writing = false;
  EndWrite(tile);
}

void TilePolicy::RecordWritten(TileId tile) {
  At(tile).record = Copy::kNone;
  ++free_record_blocks_;
  EndWrite(tile);
}

void TilePolicy::EndWrite(TileId tile) {
  --writes_;
  block_freed_ = filler_waits_;
  if (--At(tile).writes == 0) updates_.LetGo(tile);
  Sort(tile);
  Advance();
}

TileWakes TilePolicy::TakeWakes() {
  const size_t takeable = updates_.takeable();
  const TileWakes wakes{.device = device_waits_ && CanPin(*pinning_),
                        .updates = takeable - announced_,
                        .settled = unsettled_ && settled(),
                        .filling = std::exchange(block_freed_, false)};
  announced_ = takeable;
  device_waits_ = device_waits_ && !wakes.device;
  unsettled_ = unsettled_ && !wakes.settled;
  filler_waits_ = filler_waits_ && !wakes.filling;
  return wakes;
}

/// A block for something needed at `need`: a free one, or that of the copy needed furthest away.
bool TilePolicy::TakeWeightBlock(Need need) {
  if (free_weight_blocks_ > 0) {
    --free_weight_blocks_;
    return true;
  }
  std::optional<uint32_t> furthest;
  // While tiles are filled nothing is used: any copy may go.
  const auto offer = [&](const Order& order, Need earliest) {
    if (order.empty()) return;
    const Need at = std::max(order.rbegin()->first, earliest);
    if (started_ && at <= need) return;
    need = at;
    furthest = order.rbegin()->second;
  };
  offer(by_device_, 0);
  offer(by_update_, NeedAt(now_ + 1));  // what is overdue is needed next
  if (!furthest) return false;
  const TileId tile{*furthest};
  actions_.push_back({TileAction::Kind::kEvictWeight, tile});
  At(tile).weight = Copy::kNone;
  Sort(tile);
  ++evictions_;
  return true;
}

void TilePolicy::ReadWeight(TileId tile, TileAction::Kind kind) {
  At(tile).weight = Copy::kReading;
  actions_.push_back({kind, tile});
}

/// Starts all work that has become possible.
void TilePolicy::Advance() {
  if (!started_) return;
  ServePin();
  LoadUpdates();
  ReadAhead();
}

void TilePolicy::ServePin() {
  if (!pinning_ || !At(*pinning_).wanted) return;
  if (!TakeWeightBlock(PinNeed(*pinning_))) return;
  ReadWeight(*pinning_, TileAction::Kind::kReadWeight);
  Sort(*pinning_);
}

void TilePolicy::LoadUpdates() {
  while (const std::optional<UpdateQueue::Candidate> next = updates_.NextToLoad(pinning_)) {
    if (!TryLoad(next->tile, next->ahead)) return;
    updates_.Loaded(next->tile);
    Sort(next->tile);
  }
}

/// Whether a block for the tile's record is free. If a begun update is waited for, and updates that
/// may begin only afterwards hold all blocks, the last of them gives up its block.
bool TilePolicy::MakeRoomForRecord(TileId tile, bool ahead) {
  if (!RecordOnDrive(tile)) return true;
  const bool waited_for = !ahead && (draining_ || pinning_ == tile);
  if (free_record_blocks_ == 0 && waited_for && ahead_records_.size() == record_blocks_) {
    Unload(TileId{ahead_records_.rbegin()->second});
  }
  return free_record_blocks_ > 0;
}

/// Gives up what was loaded for an update that has not begun; a copy of the weight stays.
void TilePolicy::Unload(TileId tile) {
  Tile& entry = At(tile);
  updates_.Unload(tile);
  if (RecordOnDrive(tile)) {
    entry.record = Copy::kNone;
    ++free_record_blocks_;
    actions_.push_back({TileAction::Kind::kEvictRecord, tile});
  }
  if (std::exchange(entry.update_pins, false)) --entry.pins;
  if (std::exchange(entry.ahead_pins, false)) --ahead_pins_;
  Sort(tile);
}

bool TilePolicy::TryLoad(TileId tile, bool ahead) {
  if (!MakeRoomForRecord(tile, ahead)) return false;
  Tile& entry = At(tile);
  if (WeightOnDrive(tile)) {
    if (ahead && ahead_pins_ >= ahead_limit_) return false;
    if (entry.weight == Copy::kNone) {
      if (!TakeWeightBlock(UpdateNeed(tile, ahead))) return false;
      ReadWeight(tile, TileAction::Kind::kReadWeightForUpdate);
    }
    ++entry.pins;
    entry.update_pins = true;
    entry.ahead_pins = ahead;
    if (ahead) ++ahead_pins_;
  }
  if (RecordOnDrive(tile)) {
    --free_record_blocks_;
    entry.record = Copy::kReading;
    actions_.push_back({TileAction::Kind::kReadRecord, tile});
  }
  return true;
}

/// Returns when the first update that waits to be loaded is needed in this step.
std::optional<TilePolicy::Need> TilePolicy::WaitingUpdateNeed() const {
  const std::optional<TileId> tile = updates_.FirstToLoad();
  if (!tile) return std::nullopt;
  const uint64_t first = schedule_->first_use[Index(ModuleOf(*tile))];
  if (first < now_ % schedule_->length()) return std::nullopt;
  return NeedAt(StepStart() + first, *tile);
}

/// What the device needs soonest is read first, and never given up for what it needs later. Updates
/// that are needed sooner and wait to be loaded keep a block each: what was read into it would be
/// given up for them, and read again.
void TilePolicy::ReadAhead() {
  if (now_ >= end_) return;
  const Need step_end = NeedAt(StepStart() + schedule_->length());
  const std::optional<Need> update = WaitingUpdateNeed();
  while (!wanted_.empty() && wanted_.begin()->first < step_end) {
    const auto [need, number] = *wanted_.begin();
    if (update && need > *update && free_weight_blocks_ <= updates_.unloaded()) return;
    const TileId tile{number};
    if (!TakeWeightBlock(need)) return;
    ReadWeight(tile, TileAction::Kind::kReadWeight);
    Sort(tile);
  }
}

}  // namespace penstock::offload
