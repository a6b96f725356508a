// The tiles of a committed state from which other tiles are filled, by several threads at a time: a
// tile that neighbours need is read once for them.
//
// Tiles go past the page cache into a bounded number of rooms, through an I/O engine for each path.
// A tile stays until its room is needed for another one; the one that was used last longest ago
// goes first.
//
// Threads: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/mapping.h"
#include "base/mutex.h"
#include "base/result.h"
#include "base/units.h"
#include "offload/layout.h"
#include "offload/tile_reads.h"
#include "offload/tile_rooms.h"
#include "offload/whole_state.h"

namespace penstock::zero {

/// A tile of one of the ranks.
struct RankTile {
  uint32_t rank = 0;
  offload::TileId tile{};

  bool operator==(const RankTile&) const = default;
};

class SourceTiles {
 public:
  /// Of the commit in use, for so many threads at a time. `state` outlives it, and stays at that
  /// commit. Errors: of opening the files; kOutOfMemory.
  static Result<std::unique_ptr<SourceTiles>> Open(const offload::WholeState& state, int threads);

  /// A tile in memory, which stays there while the object lives.
  class Pin {
   public:
    Pin() = default;
    Pin(Pin&& other) noexcept { *this = std::move(other); }
    Pin& operator=(Pin&& other) noexcept {
      std::swap(tiles_, other.tiles_);
      std::swap(room_, other.room_);
      std::swap(tile_, other.tile_);
      std::swap(parts_, other.parts_);
      return *this;
    }
    ~Pin() { Reset(); }

    bool IsOf(const RankTile& tile) const { return tiles_ != nullptr && tile_ == tile; }
    const offload::TileParts& parts() const { return parts_; }
    void Reset() {
      if (tiles_ != nullptr) std::exchange(tiles_, nullptr)->Unpin(room_);
    }

   private:
    friend class SourceTiles;
    SourceTiles* tiles_ = nullptr;
    size_t room_ = 0;
    RankTile tile_;
    offload::TileParts parts_;
  };

  /// Returns a tile as it was committed, read and verified unless it is there. Waits while all
  /// rooms are pinned, so a thread gives its pin up before it gets another. Errors: of
  /// TileReads::Read.
  Result<Pin> Get(const RankTile& tile) EXCLUDES(mutex_);

 private:
  struct Room {
    std::optional<RankTile> holds;
    size_t pins = 0;    ///< also of threads that wait for the read
    uint64_t used = 0;  ///< number of the last use
    bool reading = false;
    Status failure;  ///< failure of the read
  };

  explicit SourceTiles(const offload::WholeState& state) : state_(state) {}
  offload::TileParts PartsOf(const RankTile& tile, size_t room) const;
  /// Pins the room that has the tile, or one for it. Whether it has to be read.
  bool PinRoom(const RankTile& tile, size_t* room) EXCLUDES(mutex_);
  /// Waits for what another thread reads.
  Status Await(size_t room) EXCLUDES(mutex_);
  Status Read(const RankTile& tile, size_t room) EXCLUDES(mutex_);
  void Unpin(size_t room) EXCLUDES(mutex_);

  const offload::WholeState& state_;
  Bytes room_bytes_;
  Mapping memory_;
  offload::Engines engines_;
  std::vector<std::unique_ptr<offload::TileReads>> reads_;  ///< by rank
  Mutex mutex_;
  CondVar changed_;  ///< a read has ended, or a room is not used any more
  std::vector<Room> rooms_ GUARDED_BY(mutex_);
  uint64_t uses_ GUARDED_BY(mutex_) = 0;
};

}  // namespace penstock::zero
