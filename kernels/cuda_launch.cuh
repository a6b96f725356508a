// Starting a kernel on a stream of the CUDA device.
#pragma once

#include <cuda_runtime.h>

#include <type_traits>

#include "device/device.h"
#include "kernels/cuda_grid.h"

namespace penstock::kernels {

/// `arguments`: the address of each. See Launch.
void LaunchKernel(device::CudaStream& stream, const char* what, const void* kernel,
                  const LaunchShape& shape, void** arguments);

/// `what` the kernel does, for the message of a failure. No block: nothing to do.
template <typename... Parameters>
void Launch(device::CudaStream& stream, const char* what, void (*kernel)(Parameters...),
            const LaunchShape& shape, std::type_identity_t<Parameters>... arguments) {
  void* addresses[] = {&arguments...};
  LaunchKernel(stream, what, reinterpret_cast<const void*>(kernel), shape, addresses);
}

/// Returns the shared memory of a kernel's block: the bytes of its launch shape, at a multiple of
/// 16.
__device__ inline unsigned char* DynamicShared() {
  extern __shared__ __align__(16) unsigned char shared[];
  return shared;
}

}  // namespace penstock::kernels
