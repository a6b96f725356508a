#include "offload/tile_rooms.h"

#include <algorithm>

#include "base/check.h"
#include "offload/state_format.h"

namespace penstock::offload {

Bytes TileRoom(const ShardLayout& layout) {
  return layout.largest_weight() + layout.largest_record();
}

TileParts PartsIn(std::span<std::byte> room, const ShardLayout& layout, TileId tile) {
  const size_t weight = layout.WeightBytes(tile).value;
  return {.weight = room.first(weight),
          .record = room.subspan(weight, layout.RecordBytes(tile).value)};
}

Result<std::unique_ptr<TileRooms>> TileRooms::Create(Bytes size, Bytes memory, size_t most) {
  const Bytes room = std::max(size, kStateAlignment);
  const size_t count = std::clamp<size_t>(memory / room, 1, most);
  PENSTOCK_ASSIGN(Mapping mapping, Mapping::Create(room * count));
  return std::unique_ptr<TileRooms>(new TileRooms(std::move(mapping), room, count));
}

TileRooms::TileRooms(Mapping memory, Bytes size, size_t count)
    : memory_(std::move(memory)), count_(count) {
  const std::span<std::byte> all(memory_.data(), memory_.size().value);
  for (size_t i = 0; i < count; ++i) free_.push_back(all.subspan(i * size.value, size.value));
}

std::span<std::byte> TileRooms::Take() {
  MutexLock lock(mutex_);
  PENSTOCK_CHECK(!free_.empty(), "more threads than rooms");
  const std::span<std::byte> room = free_.back();
  free_.pop_back();
  return room;
}

void TileRooms::Give(std::span<std::byte> room) {
  MutexLock lock(mutex_);
  free_.push_back(room);
}

}  // namespace penstock::offload
