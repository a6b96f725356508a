// GELU, tanh form, as x s with s = (1 + tanh u)/2 = 1/(1 + exp(-2u)): s and 1 - s are computed from
// exp(-2|u|), so that neither loses digits where it is small.
#include "kernels/model/cuda_gelu.h"

#include "kernels/cuda_elements.cuh"
#include "kernels/cuda_launch.cuh"

namespace penstock::kernels {
namespace {

constexpr float kRootTwoOverPi = 0.7978845608f;
constexpr float kCubic = 0.044715f;
/// Beyond this, s is 0 or 1 in fp32, far within the range in which x³ is finite.
constexpr float kFar = 30;

struct Sigmoid {
  float s;      ///< sigmoid of 2u
  float slope;  ///< s (1 - s) d(2u)/dx
};

__device__ Sigmoid SigmoidOf(float x) {
  const float y = fminf(fmaxf(x, -kFar), kFar);
  const float square = y * y;
  const float u = kRootTwoOverPi * y * fmaf(kCubic, square, 1.0f);
  const float e = expf(-2 * fabsf(u));
  const float big = 1 / (1 + e);
  const float small = e / (1 + e);
  const float derivative = 2 * kRootTwoOverPi * fmaf(3 * kCubic, square, 1.0f);
  return {u < 0 ? small : big, big * small * derivative};
}

struct Forward {
  __device__ float operator()(float x, float) const { return x * SigmoidOf(x).s; }
};
struct Backward {
  __device__ float operator()(float x, float d_out) const {
    const Sigmoid at = SigmoidOf(x);
    return d_out * fmaf(x, at.slope, at.s);
  }
};

/// out may be d_out.
template <typename T, int N, typename Function>
__global__ void MapKernel(uint64_t packs, const T* x, const T* d_out, T* out, Function function) {
  const uint64_t pack = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (pack >= packs) return;
  const auto a = LoadPack<N>(x + pack * N);
  const auto b = LoadPack<N>(d_out + pack * N);
  Pack<T, N> result;
  for (int i = 0; i < N; ++i) {
    result.elements[i] = FromFloat<T>(function(ToFloat(a.elements[i]), ToFloat(b.elements[i])));
  }
  StorePack(result, out + pack * N);
}

template <typename Function>
void Map(device::CudaStream& stream, const char* what, DType dtype, uint64_t n, const std::byte* x,
         const std::byte* d_out, std::byte* out, Function function) {
  const bool aligned = IsAligned(x) && IsAligned(d_out) && IsAligned(out);
  WithElements(dtype, aligned ? n : 1, [&]<typename T, int N>() {
    Launch(stream, what, MapKernel<T, N, Function>, OneThreadEach(n / N), n / N,
           reinterpret_cast<const T*>(x), reinterpret_cast<const T*>(d_out),
           reinterpret_cast<T*>(out), function);
  });
}

}  // namespace

void CudaGeluForward(device::CudaStream& stream, DType dtype, uint64_t n, const std::byte* x,
                     std::byte* out) {
  Map(stream, "gelu", dtype, n, x, x, out, Forward());
}

void CudaGeluBackward(device::CudaStream& stream, DType dtype, uint64_t n, const std::byte* x,
                      const std::byte* d_out, std::byte* d_x) {
  Map(stream, "the gradient of gelu", dtype, n, x, d_out, d_x, Backward());
}

}  // namespace penstock::kernels
