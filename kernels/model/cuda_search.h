// A search on the GPU for numbers that leave their range. The function enqueues and returns.
#pragma once

#include <cstdint>

#include "device/device.h"
#include "kernels/model/tensor_view.h"

namespace penstock::kernels {

/// See ModelOperators::FindBeyond.
void CudaFindBeyond(device::CudaStream& stream, const ConstTensorView& x, float limit,
                    uint64_t base, uint64_t* first);

}  // namespace penstock::kernels
