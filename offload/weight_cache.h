// Host copies of weights whose home is the drive: which tiles have one, and which goes next.
//
// The future is known (offload/schedule.h), so the copy given up is the one needed furthest away
// (Belady's MIN). This is bookkeeping alone: no I/O, no waiting, no locking; TileStore serialises.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "offload/layout.h"
#include "offload/slab.h"

namespace penstock::offload {

class WeightCache {
 public:
  struct Entry {
    BlockLease block;      ///< valid: there is a copy, or one is being read
    bool reading = false;  ///< the block is being filled
    bool writing = false;  ///< the block is being written back
    bool verified = true;  ///< false: read from the drive, checksum not yet compared
    int pins = 0;          ///< users that rely on the block staying

    bool present() const { return block.valid() && !reading; }
    bool evictable() const { return present() && !writing && pins == 0; }
  };

  /// When a tile's host copy is needed next; larger is later.
  using NextUse = std::function<uint64_t(TileId)>;

  WeightCache(BlockPool& pool, size_t tiles) : pool_(pool), entries_(tiles) {}

  Entry& operator[](TileId tile) { return entries_[Index(tile)]; }

  /// A block for something needed at `needed_at`: a free one, or that of the evictable copy needed
  /// furthest away, if that is later than `needed_at`. Otherwise an invalid lease.
  BlockLease TakeBlock(uint64_t needed_at, const NextUse& next_use);
  uint64_t evictions() const { return evictions_; }

 private:
  BlockPool& pool_;
  std::vector<Entry> entries_;
  uint64_t evictions_ = 0;
};

}  // namespace penstock::offload
