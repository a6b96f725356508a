// The update side of TilePolicy: updates and their passes as they begin, are given out and end.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "offload/tile_policy.h"

namespace penstock::offload {

void TilePolicy::Begin(TileId tile) {
  updates_.Begin(tile);
  unsettled_ = true;
  At(tile).updated = true;
  if (std::exchange(At(tile).ahead_pins, false)) --ahead_pins_;
  Sort(tile);
  Advance();
}

std::optional<TileId> TilePolicy::TakeUpdate() {
  const std::optional<TileId> tile = updates_.Take();
  announced_ = std::min(announced_, updates_.takeable());
  return tile;
}

/// What is kept counts as loaded ahead: more urgent needs may take its room.
void TilePolicy::FinishFirstPass(TileId tile) {
  updates_.FinishFirstPass(tile);
  Tile& entry = At(tile);
  if (entry.update_pins) {
    entry.ahead_pins = true;
    ++ahead_pins_;
  }
  if (updates_.waiting() || ahead_pins_ > ahead_limit_) Unload(tile);
  Sort(tile);
  Advance();
}

void TilePolicy::FinishUpdate(TileId tile) {
  updates_.Finish(tile);
  if (std::exchange(At(tile).update_pins, false)) --At(tile).pins;
  BeginWrites(tile);
  Advance();
}

/// The parts that live on the drive are being written back.
void TilePolicy::BeginWrites(TileId tile) {
  Tile& entry = At(tile);
  entry.weight_writing = WeightOnDrive(tile);
  entry.writes =
      static_cast<uint8_t>((WeightOnDrive(tile) ? 1 : 0) + (RecordOnDrive(tile) ? 1 : 0));
  writes_ += entry.writes;
  unsettled_ = unsettled_ || entry.writes > 0;
  if (entry.writes > 0) updates_.HoldBack(tile);
  Sort(tile);
}

void TilePolicy::SetDraining(bool draining) {
  draining_ = draining;
  Advance();
}

}  // namespace penstock::offload
