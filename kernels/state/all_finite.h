// Checks whether values are finite: updated weights are checked while they are in the cache.
//
// Threads: no state.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace penstock::kernels {

/// Returns whether none of `n` values is infinite or NaN. They are aligned as their type requires.
bool AllFinite(const void* values, DType dtype, uint64_t n);

}  // namespace penstock::kernels
