// Sums of squares of gradients, by block, in an order that is the same everywhere.
//
// Threads: the functions keep no state; any number may run at once.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/dtype.h"
#include "kernels/state/figures.h"

namespace penstock::kernels {

using penstock::kBlockElements;

/// `gradient` holds elements of any dtype and needs no alignment. Writes the sum of squares of each
/// block of `elements` (a multiple of kBlockElements), in double, to `sums` (elements /
/// kBlockElements of them). Within a block, partial sum j (of 16) takes elements j, j + 16, j + 32,
/// … in order; then s[j] += s[j + w] for w = 8, 4, 2, 1. Squares of binary32 are exact in double,
/// so fused and unfused give the same. Returns whether every element is finite (a non-finite block
/// has a non-finite sum; an overflow of the sum itself cannot happen).
bool BlockSums(const void* gradient, DType dtype, uint64_t elements, std::span<double> sums);
bool BlockSumsReference(const void* gradient, DType dtype, uint64_t elements,
                        std::span<double> sums);

/// Receives a pass's figures of each block; the lists are equally long.
struct BlockFigures {
  std::span<double> sums;         ///< as in BlockSums
  std::span<float> largest;       ///< magnitude of the finite elements; 0 if there is none
  std::span<uint32_t> nonfinite;  ///< number of infinite or NaN elements

  GradientFigures Of(size_t block) const {
    return {
        .sum_of_squares = sums[block], .largest = largest[block], .nonfinite = nonfinite[block]};
  }
};

/// BlockSums, with the same bits of the sums, that also finds the other figures.
bool BlockSumsAndFigures(const void* gradient, DType dtype, uint64_t elements,
                         const BlockFigures& figures);
bool BlockSumsAndFiguresReference(const void* gradient, DType dtype, uint64_t elements,
                                  const BlockFigures& figures);

/// Returns the figures of fewer elements than a block: those of a block that begins with them, and
/// in which all others are zero.
GradientFigures PartFigures(const void* gradient, DType dtype, uint64_t elements);

}  // namespace penstock::kernels
