// The global gradient norm, from block sums that arrive in any order.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "offload/layout.h"

namespace penstock::zero {

/// Collects one step's block sums and combines them in the order of the flat index, so that neither
/// tiles nor arrival change a bit. All functions may be called from any thread.
class GradientNorm {
 public:
  explicit GradientNorm(const offload::ShardLayout& layout);

  struct Value {
    double norm = 0;
    bool finite = true;
  };

  struct Blocks {
    std::span<const double> sums;  ///< in the order of the flat index
    bool finite = true;
  };

  /// Returns where a tile's block sums go: one double for each of its blocks. Fill it, then call
  /// Arrived.
  std::span<double> Sums(offload::TileId tile) {
    const auto index = static_cast<uint32_t>(offload::Index(tile));
    return Sums({index, index + 1});
  }
  /// The same for consecutive tiles, of which Arrived is told the number.
  std::span<double> Sums(offload::IdRange<offload::TileId> tiles);
  void Arrived(bool finite, size_t tiles = 1) EXCLUDES(mutex_);
  /// Blocks until every tile of the step has arrived; then the next step may begin. Returns the
  /// shard's block sums, valid until gradients of the next step arrive.
  Blocks WaitForBlocks() EXCLUDES(mutex_);
  /// Returns the norm of a rank that has all blocks.
  static Value NormOf(const Blocks& blocks);
  Value Wait() EXCLUDES(mutex_) { return NormOf(WaitForBlocks()); }
  /// Replaces Wait for a step that is dropped: blocks until the `tiles` that were sent have
  /// arrived.
  void Discard(size_t tiles) EXCLUDES(mutex_);

 private:
  std::vector<double> sums_;       ///< by tile; disjoint spans, published by Arrived
  std::vector<uint64_t> offsets_;  ///< of each tile's first block; frozen ones have none
  size_t tiles_ = 0;               ///< number of tiles with gradients
  Mutex mutex_;
  CondVar arrived_;
  size_t missing_ GUARDED_BY(mutex_) = 0;
  bool finite_ GUARDED_BY(mutex_) = true;
};

}  // namespace penstock::zero
