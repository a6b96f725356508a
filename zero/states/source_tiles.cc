#include "zero/states/source_tiles.h"

#include <algorithm>
#include <new>

namespace penstock::zero {

using offload::TileParts;

namespace {

constexpr Bytes kMaxMemory = 64_MiB;  // or one tile

}  // namespace

Result<std::unique_ptr<SourceTiles>> SourceTiles::Open(const offload::WholeState& state,
                                                       int threads) {
  std::unique_ptr<SourceTiles> tiles(new SourceTiles(state));
  Bytes room = offload::kStateAlignment;  // where there are no tiles
  size_t paths = 0;
  for (uint32_t rank = 0; rank < state.world_size(); ++rank) {
    room = std::max(room, offload::TileRoom(state.rank(rank).layout()));
    paths = std::max<size_t>(paths, state.rank(rank).header().paths);
  }
  // One more than threads: for the tile that one of them has left and another is about to need.
  const size_t rooms =
      std::clamp<size_t>(kMaxMemory / room, 1, static_cast<size_t>(std::max(threads, 1)) + 1);
  tiles->room_bytes_ = room;
  PENSTOCK_ASSIGN(tiles->memory_, Mapping::Create(room * rooms));
  PENSTOCK_ASSIGN(tiles->engines_, offload::CreateEngines(paths));
  for (uint32_t rank = 0; rank < state.world_size(); ++rank) {
    PENSTOCK_ASSIGN(auto reads, offload::TileReads::Open(state.rank(rank), tiles->engines_));
    tiles->reads_.push_back(std::move(reads));
  }
  MutexLock lock(tiles->mutex_);
  tiles->rooms_.resize(rooms);
  return tiles;
}

Result<SourceTiles::Pin> SourceTiles::Get(const RankTile& tile) {
  Pin pin;
  const bool is_new = PinRoom(tile, &pin.room_);
  pin.tiles_ = this;
  PENSTOCK_TRY(is_new ? Read(tile, pin.room_) : Await(pin.room_));
  pin.tile_ = tile;
  pin.parts_ = PartsOf(tile, pin.room_);
  return pin;
}

TileParts SourceTiles::PartsOf(const RankTile& tile, size_t room) const {
  return offload::PartsIn({memory_.data() + room * room_bytes_.value, room_bytes_.value},
                          state_.rank(tile.rank).layout(), tile.tile);
}

bool SourceTiles::PinRoom(const RankTile& tile, size_t* room) {
  MutexLock lock(mutex_);
  while (true) {
    auto found = std::ranges::find(rooms_, std::optional(tile), &Room::holds);
    const bool is_new = found == rooms_.end();
    if (is_new) {
      // Those that are pinned come last.
      found = std::ranges::min_element(rooms_, {}, [](const Room& candidate) {
        return std::pair(candidate.pins != 0, candidate.used);
      });
    }
    if (is_new && found->pins != 0) {
      changed_.Wait(mutex_);
      continue;
    }
    if (is_new) {
      found->holds = tile;
      found->reading = true;
      found->failure = Status();
    }
    ++found->pins;
    found->used = ++uses_;
    *room = static_cast<size_t>(found - rooms_.begin());
    return is_new;
  }
}

Status SourceTiles::Await(size_t room) {
  MutexLock lock(mutex_);
  while (rooms_[room].reading) changed_.Wait(mutex_);
  return rooms_[room].failure;
}

Status SourceTiles::Read(const RankTile& tile, size_t room) {
  Status read;
  try {
    read = reads_[tile.rank]->Read(tile.tile, PartsOf(tile, room));
  } catch (const std::bad_alloc&) {
    // Others may wait for it.
    read = MakeError(ErrorCode::kOutOfMemory, "the host has no memory left");
  }
  MutexLock lock(mutex_);
  Room& entry = rooms_[room];
  entry.reading = false;
  entry.failure = read;
  if (!read.ok()) entry.holds.reset();
  changed_.NotifyAll();
  return read;
}

void SourceTiles::Unpin(size_t room) {
  MutexLock lock(mutex_);
  if (--rooms_[room].pins == 0) changed_.NotifyAll();
}

}  // namespace penstock::zero
