// CUDA's language and functions for code of the device, for a C++ compiler. Included before
// everything else in the kernels' sources.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>

#include "base/check.h"
#include "tests/emulated_cuda/block.h"

#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __launch_bounds__
#define __global__
#define __device__
#define __host__
/// Blocks run one after the other on a thread, and all threads of a block are on it. What one block
/// leaves there, the next one finds.
#define __shared__ thread_local
#define __launch_bounds__(...)

using std::isfinite, std::isnan;

template <typename T>
T min(T a, T b) {
  return b < a ? b : a;
}

inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fmaf(a, b, c); }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline int __ffs(int value) { return std::countr_zero(static_cast<unsigned>(value)) + 1; }

inline unsigned long long atomicMin(unsigned long long* at, unsigned long long value) {
  const std::atomic_ref<unsigned long long> shared(*at);
  unsigned long long old = shared.load();
  while (value < old && !shared.compare_exchange_weak(old, value)) {
  }
  return old;
}

inline unsigned long long atomicAdd(unsigned long long* at, unsigned long long value) {
  return std::atomic_ref<unsigned long long>(*at).fetch_add(value);
}

inline unsigned atomicMax(unsigned* at, unsigned value) {
  const std::atomic_ref<unsigned> shared(*at);
  unsigned old = shared.load();
  while (value > old && !shared.compare_exchange_weak(old, value)) {
  }
  return old;
}
inline unsigned __float_as_uint(float value) { return std::bit_cast<unsigned>(value); }

inline void __syncthreads() { penstock::emulated_cuda::MeetBlock("__syncthreads", true); }
inline int __syncthreads_and(int value) {
  return penstock::emulated_cuda::MeetBlock("__syncthreads_and", value != 0) ? 1 : 0;
}

namespace penstock::emulated_cuda {

template <typename T>
struct Shuffled {
  T value;
  unsigned with;  ///< the mask of this lane
};
template <typename T>
void ShuffleXor(const Shuffled<T>* in, T* out) {
  for (unsigned lane = 0; lane < kLanes; ++lane) out[lane] = in[lane ^ in[lane].with].value;
}
inline void Ballot(const bool* in, unsigned* out) {
  unsigned lanes = 0;
  for (unsigned lane = 0; lane < kLanes; ++lane) lanes |= in[lane] ? 1U << lane : 0U;
  for (unsigned lane = 0; lane < kLanes; ++lane) out[lane] = lanes;
}

}  // namespace penstock::emulated_cuda

template <typename T>
T __shfl_xor_sync(unsigned lanes, T value, unsigned with) {
  PENSTOCK_CHECK(lanes == 0xffffffff);
  using penstock::emulated_cuda::OfWarp, penstock::emulated_cuda::Shuffled;
  return OfWarp<Shuffled<T>, T, penstock::emulated_cuda::ShuffleXor<T>>("__shfl_xor_sync",
                                                                        {value, with});
}
inline unsigned __ballot_sync(unsigned lanes, bool value) {
  PENSTOCK_CHECK(lanes == 0xffffffff);
  using penstock::emulated_cuda::OfWarp;
  return OfWarp<bool, unsigned, penstock::emulated_cuda::Ballot>("__ballot_sync", value);
}
