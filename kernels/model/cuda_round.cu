#include "kernels/model/cuda_round.h"

#include "kernels/cuda_elements.cuh"
#include "kernels/cuda_launch.cuh"

namespace penstock::kernels {
namespace {

template <typename T, int N>
__global__ void RoundFloatsKernel(uint64_t packs, const float* in, T* out) {
  const uint64_t pack = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (pack >= packs) return;
  const auto values = LoadPack<N>(in + pack * N);
  Pack<T, N> rounded;
  for (int i = 0; i < N; ++i) rounded.elements[i] = FromFloat<T>(values.elements[i]);
  StorePack(rounded, out + pack * N);
}

}  // namespace

void CudaRoundFloats(device::CudaStream& stream, DType dtype, uint64_t n, const float* in,
                     std::byte* out) {
  WithElements(dtype, IsAligned(out) ? n : 1, [&]<typename T, int N>() {
    Launch(stream, "the rounding of a sum", RoundFloatsKernel<T, N>, OneThreadEach(n / N), n / N,
           in, reinterpret_cast<T*>(out));
  });
}

}  // namespace penstock::kernels
