// Starting a kernel on a stream of the CUDA device.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "device/device.h"

namespace penstock::kernels {

struct LaunchShape {
  uint64_t blocks;
  dim3 threads;
  size_t shared = 0;  ///< bytes of dynamic shared memory
};

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

inline uint64_t DivideUp(uint64_t n, uint64_t by) { return (n + by - 1) / by; }

/// Threads of a block where nothing asks for another number.
inline constexpr unsigned kThreads = 256;

/// For a loop over `n` things with one thread each.
inline LaunchShape OneThreadEach(uint64_t n) { return {DivideUp(n, kThreads), dim3(kThreads)}; }

}  // namespace penstock::kernels
