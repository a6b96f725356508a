// A search for numbers that leave their range.
//
// Threads: any.
#pragma once

#include <cstdint>

#include "kernels/model/tensor_view.h"

namespace penstock::kernels {

/// Returns the number of the first element whose magnitude is not at most `limit`, as that of NaN
/// is not; the number of elements if there is none. See ModelOperators::FindBeyond.
uint64_t CpuFirstBeyond(const ConstTensorView& x, float limit);

}  // namespace penstock::kernels
