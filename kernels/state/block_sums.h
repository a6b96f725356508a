// Sums of squares of gradients, by block, in an order that is the same everywhere.
//
// Threads: the functions keep no state; any number may run at once.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/dtype.h"

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

}  // namespace penstock::kernels
