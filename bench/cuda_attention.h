// The part of cuda_bench that measures attention.
#pragma once

#include "base/result.h"
#include "device/device.h"

namespace penstock::bench {

/// Measures own attention and cuDNN's, and checks their results. `room` and `host`: 1 GiB of random
/// bf16; `ceiling`: TFLOP/s of a product. Without cuDNN a line says why, and own attention is
/// measured alone. Errors: of the device; kInvalidArgument, behind all rows, if results are off by
/// more than rounding.
Status MeasureAttention(device::Device& device, const device::DeviceBuffer& room,
                        const device::HostBuffer& host, double ceiling);

}  // namespace penstock::bench
