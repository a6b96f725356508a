// In place of the file of this name: kernels run as functions, on the thread of an emulated stream.
#pragma once

#include <type_traits>

#include "base/check.h"
#include "device/cuda_status.h"
#include "device/device.h"
#include "kernels/cuda_grid.h"
#include "tests/emulated_cuda/block.h"
#include "tests/emulated_cuda/cudart.h"

namespace penstock::kernels {

/// A kernel is given addresses on the device alone.
template <typename T>
void CheckArgument(const char* what, T argument) {
  if constexpr (std::is_pointer_v<T>) {
    PENSTOCK_CHECK(argument == nullptr || emulated_cuda::IsOnDevice(argument, 1),
                   "{}: an argument is no address on the device", what);
  }
}

template <typename... Parameters>
void Launch(device::CudaStream& stream, const char* what, void (*kernel)(Parameters...),
            const LaunchShape& shape, std::type_identity_t<Parameters>... arguments) {
  (CheckArgument(what, arguments), ...);
  stream.Launch([&](cudaStream_t handle) -> Status {
    if (shape.shared > emulated_cuda::SharedMemoryOfBlock()) {
      return device::CudaStatus(cudaErrorInvalidValue,
                                "asking for {} bytes of shared memory for {}", shape.shared, what);
    }
    emulated_cuda::CountLaunch(what);
    const cudaError_t enqueued = emulated_cuda::Enqueue(handle, [=] {
      emulated_cuda::RunGrid(what, shape.blocks, shape.threads, shape.shared,
                             [&] { kernel(arguments...); });
    });
    return device::CudaStatus(enqueued, "launching {}", what);
  });
}

inline unsigned char* DynamicShared() { return emulated_cuda::DynamicShared(); }

}  // namespace penstock::kernels
