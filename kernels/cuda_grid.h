// How many threads a kernel of the CUDA device has.
#pragma once

#include <vector_types.h>

#include <cstddef>
#include <cstdint>

namespace penstock::kernels {

struct LaunchShape {
  uint64_t blocks;
  dim3 threads;
  size_t shared = 0;  ///< bytes of dynamic shared memory
};

inline uint64_t DivideUp(uint64_t n, uint64_t by) { return (n + by - 1) / by; }

/// Threads of a block where nothing asks for another number.
inline constexpr unsigned kThreads = 256;

/// Returns the launch shape of a loop over `n` elements with one thread each.
inline LaunchShape OneThreadEach(uint64_t n) { return {DivideUp(n, kThreads), dim3(kThreads)}; }

}  // namespace penstock::kernels
