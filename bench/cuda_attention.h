// The part of cuda_bench that measures attention.
#pragma once

#include "base/result.h"
#include "device/device.h"

namespace penstock::bench {

/// Measures own attention and cuDNN's, and compares their results. `host`: 1 GiB of random bf16,
/// which is copied to `room` and then overwritten; `ceiling`: TFLOP/s of a product.
/// Without cuDNN a line says why, and own attention is measured alone. Errors: of the device;
/// kInvalidArgument if the results differ by more than rounding.
Status MeasureAttention(device::Device& device, const device::DeviceBuffer& room,
                        const device::HostBuffer& host, double ceiling);

}  // namespace penstock::bench
