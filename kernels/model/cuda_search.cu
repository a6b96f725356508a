#include "kernels/model/cuda_search.h"

#include "kernels/cuda_elements.cuh"
#include "kernels/cuda_launch.cuh"

namespace penstock::kernels {
namespace {

/// Finds the min of all, independent of the order of threads.
template <typename T>
__global__ void FindBeyondKernel(uint64_t n, const T* x, float limit, uint64_t base,
                                 unsigned long long* first) {
  const uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < n && !(fabsf(ToFloat(x[i])) <= limit)) atomicMin(first, base + i);
}

}  // namespace

void CudaFindBeyond(device::CudaStream& stream, const ConstTensorView& x, float limit,
                    uint64_t base, uint64_t* first) {
  static_assert(sizeof(unsigned long long) == sizeof(uint64_t));
  const uint64_t n = x.shape.elements();
  WithElements(x.dtype, 1, [&]<typename T, int N>() {
    Launch(stream, "the search for numbers out of range", FindBeyondKernel<T>, OneThreadEach(n), n,
           reinterpret_cast<const T*>(x.data), limit, base,
           reinterpret_cast<unsigned long long*>(first));
  });
}

}  // namespace penstock::kernels
