// Whether values are finite: what an update leaves is looked at while it is in the cache.
//
// Threads: no state.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace penstock::kernels {

/// Whether none of `n` values, which are aligned as their type asks, is infinite or NaN.
bool AllFinite(const void* values, DType dtype, uint64_t n);

}  // namespace penstock::kernels
