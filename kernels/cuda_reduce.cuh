// Reductions over the threads of a block, always in the same order.
#pragma once

#include <cuda_runtime.h>

namespace penstock::kernels {

inline constexpr unsigned kAllLanes = 0xffffffff;
inline constexpr unsigned kWarp = 32;

/// Every thread gets the reduction of the `values` of all. All threads of the block call it; their
/// number is a multiple of 32 and at most 1024. It ends with all threads past their reads of
/// earlier results, not of this one: the next call waits for those.
template <typename T, typename Reduce>
__device__ T ReduceBlock(T value, Reduce reduce) {
  __shared__ T of_warps[kWarp];
  for (unsigned distance = kWarp / 2; distance > 0; distance /= 2) {
    value = reduce(value, __shfl_xor_sync(kAllLanes, value, distance));
  }
  __syncthreads();
  if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = value;
  __syncthreads();
  value = of_warps[0];
  for (unsigned warp = 1; warp < blockDim.x / kWarp; ++warp) {
    value = reduce(value, of_warps[warp]);
  }
  return value;
}

struct Plus {
  __device__ float operator()(float a, float b) const { return a + b; }
};
struct Maximum {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
  __device__ unsigned operator()(unsigned a, unsigned b) const { return a < b ? b : a; }
};

__device__ inline float SumOverBlock(float value) { return ReduceBlock(value, Plus()); }
__device__ inline float MaximumOverBlock(float value) { return ReduceBlock(value, Maximum()); }

}  // namespace penstock::kernels
