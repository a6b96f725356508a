// Memory for several tiles at a time, one for each thread that works on one.
//
// Threads: any.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/mapping.h"
#include "base/mutex.h"
#include "base/result.h"
#include "base/units.h"
#include "offload/layout.h"

namespace penstock::offload {

/// The places of a tile's parts in memory.
struct TileParts {
  std::span<std::byte> weight;
  std::span<std::byte> record;  ///< empty for a frozen tile
};

/// Returns the memory that any tile of a layout fits in. Parts are multiples of kPlaneAlignment, so
/// that both begin as direct I/O needs it.
Bytes TileRoom(const ShardLayout& layout);
/// Returns where a tile's parts go in such memory.
TileParts PartsIn(std::span<std::byte> room, const ShardLayout& layout, TileId tile);

class TileRooms {
 public:
  /// Creates as many rooms of `size` as fit into `memory`: 1 to `most`. Errors: kOutOfMemory.
  static Result<std::unique_ptr<TileRooms>> Create(Bytes size, Bytes memory, size_t most);

  /// A room, which goes back with the object.
  class Lease {
   public:
    explicit Lease(TileRooms& rooms) : rooms_(rooms), room_(rooms.Take()) {}
    ~Lease() { rooms_.Give(room_); }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    std::span<std::byte> memory() const { return room_; }

   private:
    TileRooms& rooms_;
    const std::span<std::byte> room_;
  };

  /// Returns how many there are: no more threads may have a lease.
  size_t count() const { return count_; }

 private:
  TileRooms(Mapping memory, Bytes size, size_t count);
  std::span<std::byte> Take() EXCLUDES(mutex_);
  void Give(std::span<std::byte> room) EXCLUDES(mutex_);

  const Mapping memory_;
  const size_t count_;
  Mutex mutex_;
  std::vector<std::span<std::byte>> free_ GUARDED_BY(mutex_);
};

}  // namespace penstock::offload
