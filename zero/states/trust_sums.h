// What trust ratios are made of: the sums of squares of each tensor, from the first pass of an
// update that takes two.
//
// Tiles and shares cut tensors, and an order of additions that depended on them would change bits.
// So the pass leaves the sums of each block of the flat index, of each tensor that is in it: tiles
// and shares are whole blocks. Those of a tensor are added in the order of the flat index, on every
// rank alike.
//
// Threads: OfTile from any, each for tiles of its own; all else when the pass has ended.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/units.h"
#include "config/config.h"
#include "kernels/state/lamb.h"
#include "offload/layout.h"

namespace penstock::zero {

/// Whether a step goes over all tiles twice: first for sums of squares, then to update.
bool TakesTwoPasses(const config::Config& config);

class TrustBlocks {
 public:
  explicit TrustBlocks(const offload::ShardLayout& layout);
  /// What it takes of the host, with what ByTensor returns.
  static Bytes Need(const offload::ShardLayout& layout);
  /// Returns the most sums that a rank has.
  static uint64_t Most(const offload::ShardLayout& layout);

  /// Returns where the sums of a trained tile go: for each of its parts (TensorFigures::Parts), of
  /// each block that the part is in.
  std::span<kernels::TrustSums> OfTile(offload::TileId tile);
  /// Returns the sums of this rank, in the order of its tiles.
  std::span<const kernels::TrustSums> all() const { return sums_; }
  /// Adds up those of all ranks, by tensor: in the order of modules, and of the tensors in each.
  std::vector<kernels::TrustSums> ByTensor(
      std::span<const kernels::TrustSums* const> of_ranks) const;

 private:
  /// Consecutive sums of a rank that belong to one tensor.
  struct Run {
    uint32_t rank = 0;
    size_t tensor = 0;  ///< index among all tensors
    uint64_t blocks = 0;
  };
  static std::vector<Run> RunsOf(const offload::ShardLayout& layout);

  size_t tensors_ = 0;
  std::vector<Run> runs_;          ///< of all ranks, in the order of the flat index
  std::vector<uint64_t> offsets_;  ///< of each tile's first sum, and the number of all
  std::vector<kernels::TrustSums> sums_;
};

}  // namespace penstock::zero
