#include "kernels/model/cuda_add.h"

#include "kernels/cuda_launch.cuh"

namespace penstock::kernels {
namespace {

__global__ void AddFloatsKernel(uint64_t n, const float* terms, float* sums) {
  const uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < n) sums[i] += terms[i];
}

}  // namespace

void CudaAddFloats(device::CudaStream& stream, uint64_t n, const float* terms, float* sums) {
  Launch(stream, "the sum of gradients", AddFloatsKernel, OneThreadEach(n), n, terms, sums);
}

}  // namespace penstock::kernels
