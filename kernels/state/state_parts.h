// The states of a module whose home is the device, as a table of parts that one call updates.
//
// Planes are stored tile by tile, but figures and trust ratios belong to tensors. So a part is one
// tile's share of one tensor: whole blocks, or less than a block at an end of the tensor
// (TensorParts in kernels/state/figures.h). Elements of no tensor (padding) are parts as well. A
// table of parts that are stored and updated alike is made once and kept in device memory, where a
// kernel finds the part of each of its blocks.
//
// Plain values. Threads: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/state/optimizer_tile.h"

namespace penstock::kernels {

/// The tensor of a part that belongs to none.
inline constexpr uint64_t kNoTensor = UINT64_MAX;

/// Consecutive elements of one tile. Addresses are of its first element, in device memory; null
/// where the tile lacks the plane.
struct StatePart {
  std::byte* weight = nullptr;
  std::byte* lo = nullptr;
  std::byte* master = nullptr;
  std::byte* exp_avg = nullptr;
  std::byte* exp_avg_sq = nullptr;
  const std::byte* gradient = nullptr;
  uint64_t elements = 0;
  uint64_t first_element = 0;  ///< index in the module's flat index, for stochastic rounding
  uint64_t first_block = 0;    ///< blocks of the parts before it; the last of a part may be short
  uint64_t tensor = kNoTensor;

  uint64_t blocks() const { return (elements + kBlockElements - 1) / kBlockElements; }
};

/// A table of parts. Those of tensors come first, and those of no tensor after them.
struct StateParts {
  OptimizerTile kind;                ///< one of their tiles, for encodings and dtypes
  const StatePart* parts = nullptr;  ///< [count], in device memory
  uint64_t count = 0;
  uint64_t blocks = 0;           ///< blocks of all parts
  uint64_t measured_blocks = 0;  ///< blocks of the parts of tensors
};

/// Returns elements first … first + count - 1 of a tile in device memory; the table that it comes
/// into sets first_block.
StatePart MakeStatePart(const OptimizerTile& tile, uint64_t first, uint64_t count, uint64_t tensor);
/// Sets first_block of each part, and returns their table but for the address. `kind`: a tile of
/// theirs. Precondition: parts of tensors come first.
StateParts MakeStateParts(const OptimizerTile& kind, std::span<StatePart> parts);

/// Returns the index of the part that a block belongs to. Precondition: there is one.
constexpr uint64_t PartWithBlock(const StatePart* parts, uint64_t count, uint64_t block) {
  uint64_t low = 0;
  while (count > 1) {  // the part is one of `count` from `low` on
    const uint64_t half = count / 2;
    if (parts[low + half].first_block <= block) {
      low += half;
      count -= half;
    } else {
      count = half;
    }
  }
  return low;
}

/// Returns elements first … first + count - 1 of a part as a tile; the caller sets the rounding's
/// key.
OptimizerTile TileOf(const OptimizerTile& kind, const StatePart& part, uint64_t first,
                     uint64_t count);

}  // namespace penstock::kernels
