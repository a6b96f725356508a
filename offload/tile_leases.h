// What the tile store hands out: pinned weights, tiles to update, and weights to compare with their
// checksums. The first two are leases that release themselves, and must not outlive the store.
//
// Threads: a lease is used by one thread at a time, and may end on another thread; not while the
// store's mutex is held.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "offload/layout.h"

namespace penstock::offload {

class TileStore;

/// Weights of consecutive tiles in host memory, which stay there until the lease ends.
class [[nodiscard]] PinnedWeights {
 public:
  PinnedWeights() = default;
  PinnedWeights(PinnedWeights&& other) noexcept
      : store_(std::exchange(other.store_, nullptr)),
        tiles_(other.tiles_),
        weights_(std::move(other.weights_)) {}
  /// Gives back at once what this lease held, not with `other`.
  PinnedWeights& operator=(PinnedWeights&& other) noexcept;
  ~PinnedWeights() { Release(); }

  /// Returns the weight of each tile.
  const std::vector<std::span<const std::byte>>& weights() const { return weights_; }
  /// Whether the weights keep blocks from other tiles. Weights that live in host memory have none:
  /// for these the lease may end at any time, and costs nothing.
  bool holds_blocks() const { return store_ != nullptr; }
  void Release();

 private:
  friend class TileStore;
  PinnedWeights(TileStore* store, IdRange<TileId> tiles,
                std::vector<std::span<const std::byte>> weights)
      : store_(store), tiles_(tiles), weights_(std::move(weights)) {}

  TileStore* store_ = nullptr;  ///< null: there is nothing to give back
  IdRange<TileId> tiles_{0, 0};
  std::vector<std::span<const std::byte>> weights_;
};

/// A weight that was read for the device, which gets it when its checksum was compared. The taker
/// hashes the bytes, and ends it with TileStore::FinishRead.
struct ReadWeight {
  TileId tile{};
  uint64_t version = 0;
  std::span<const std::byte> weight;
  uint64_t seed = 0;      ///< TileSeed of `version`
  uint64_t expected = 0;  ///< the expected WeightChecksum
};

/// The right to update a tile. If it ends before the update is finished, the store gives the tile
/// out again.
class [[nodiscard]] UpdateLease {
 public:
  UpdateLease() = default;
  UpdateLease(UpdateLease&& other) noexcept
      : store_(std::exchange(other.store_, nullptr)), tile_(other.tile_) {}
  /// Gives back at once what this lease held, not with `other`.
  UpdateLease& operator=(UpdateLease&& other) noexcept;
  ~UpdateLease() { GiveBack(); }

  void GiveBack();

 private:
  friend class TileStore;
  UpdateLease(TileStore* store, TileId tile) : store_(store), tile_(tile) {}

  TileStore* store_ = nullptr;  ///< null: the update is finished or given back
  TileId tile_{};
};

/// A tile in the hands of an optimizer thread: both parts in host memory, to be updated in place.
/// It ends with TileStore::FinishUpdate, or with its lease: what is given back must be unchanged.
struct TileUpdate {
  TileId tile{};
  /// The parts are only read in this pass, which ends with TileStore::FinishFirstPass.
  bool first_pass = false;
  uint64_t version = 0;  ///< version before the update
  std::span<std::byte> weight;
  std::span<std::byte> record;
  /// What the parts must hash to as they are now, if they were read from the drive unverified.
  std::optional<uint64_t> expected_weight;
  std::optional<uint64_t> expected_record;
  uint64_t seed_before = 0;  ///< TileSeed of `version`
  uint64_t seed_after = 0;   ///< and of the next
  UpdateLease lease;
};

}  // namespace penstock::offload
