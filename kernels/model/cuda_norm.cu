// One block of threads for each row, which every pass reads again from the cache.
#include "kernels/model/cuda_norm.h"

#include <limits>

#include "kernels/cuda_elements.cuh"
#include "kernels/cuda_launch.cuh"
#include "kernels/cuda_reduce.cuh"

namespace penstock::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// Calls `visit(c)` for the packs of a row that are this thread's; c is the first column of each.
template <int N, typename Visit>
__device__ void ForEachPack(uint64_t width, Visit visit) {
  for (uint64_t c = uint64_t{threadIdx.x} * N; c < width; c += uint64_t{blockDim.x} * N) visit(c);
}

/// For values that are not negative: floats without a sign are in the order of their patterns.
__device__ void RaiseTo(float* value, float to) {
  atomicMax(reinterpret_cast<unsigned*>(value), __float_as_uint(to));
}

template <typename T, int N>
__global__ void ForwardKernel(uint64_t width, const T* x, const T* weight, const T* bias, float eps,
                              T* out, float* mean, float* rstd, float* largest) {
  const uint64_t row = blockIdx.x;
  x += row * width;
  out += row * width;
  float sum = 0;
  ForEachPack<N>(width, [&](uint64_t c) {
    const auto pack = LoadPack<N>(x + c);
    for (int i = 0; i < N; ++i) sum += ToFloat(pack.elements[i]);
  });
  const float row_mean = SumOverBlock(sum) / static_cast<float>(width);
  float squares = 0;
  float magnitude = 0;
  ForEachPack<N>(width, [&](uint64_t c) {
    const auto pack = LoadPack<N>(x + c);
    for (int i = 0; i < N; ++i) {
      const float value = ToFloat(pack.elements[i]);
      const float deviation = value - row_mean;
      squares = fmaf(deviation, deviation, squares);
      // A NaN is lost in the maximum.
      magnitude = fmaxf(magnitude, isfinite(value) ? fabsf(value) : kInfinity);
    }
  });
  if (largest != nullptr) {
    magnitude = MaximumOverBlock(magnitude);
    if (threadIdx.x == 0) RaiseTo(largest, magnitude);
  }
  const float variance = SumOverBlock(squares) / static_cast<float>(width);
  const float row_rstd = 1 / sqrtf(variance + eps);
  if (threadIdx.x == 0) {
    mean[row] = row_mean;
    rstd[row] = row_rstd;
  }
  ForEachPack<N>(width, [&](uint64_t c) {
    const auto pack = LoadPack<N>(x + c);
    const auto scale = LoadPack<N>(weight + c);
    const auto shift = LoadPack<N>(bias + c);
    Pack<T, N> result;
    for (int i = 0; i < N; ++i) {
      const float normal = (ToFloat(pack.elements[i]) - row_mean) * row_rstd;
      result.elements[i] =
          FromFloat<T>(fmaf(normal, ToFloat(scale.elements[i]), ToFloat(shift.elements[i])));
    }
    StorePack(result, out + c);
  });
}

/// With n = (x − mean) rstd and g = d_out weight: d_x = rstd (g − mean(g) − n mean(g n)).
template <typename T, int N>
__global__ void BackwardKernel(uint64_t width, const T* x, const T* weight, const float* mean,
                               const float* rstd, const T* d_out, bool add_to_d_x, T* d_x) {
  const uint64_t row = blockIdx.x;
  x += row * width;
  d_out += row * width;
  d_x += row * width;
  const float row_mean = mean[row];
  const float row_rstd = rstd[row];
  float sum_g = 0;
  float sum_gn = 0;
  ForEachPack<N>(width, [&](uint64_t c) {
    const auto at = LoadPack<N>(x + c);
    const auto gradient = LoadPack<N>(d_out + c);
    const auto scale = LoadPack<N>(weight + c);
    for (int i = 0; i < N; ++i) {
      const float g = ToFloat(gradient.elements[i]) * ToFloat(scale.elements[i]);
      sum_g += g;
      sum_gn = fmaf(g, (ToFloat(at.elements[i]) - row_mean) * row_rstd, sum_gn);
    }
  });
  const float mean_g = SumOverBlock(sum_g) / static_cast<float>(width);
  const float mean_gn = SumOverBlock(sum_gn) / static_cast<float>(width);
  ForEachPack<N>(width, [&](uint64_t c) {
    const auto at = LoadPack<N>(x + c);
    const auto gradient = LoadPack<N>(d_out + c);
    const auto scale = LoadPack<N>(weight + c);
    Pack<T, N> result;
    if (add_to_d_x) result = LoadPack<N>(d_x + c);
    for (int i = 0; i < N; ++i) {
      const float g = ToFloat(gradient.elements[i]) * ToFloat(scale.elements[i]);
      const float normal = (ToFloat(at.elements[i]) - row_mean) * row_rstd;
      float value = (g - mean_g - normal * mean_gn) * row_rstd;
      if (add_to_d_x) value += ToFloat(result.elements[i]);
      result.elements[i] = FromFloat<T>(value);
    }
    StorePack(result, d_x + c);
  });
}

}  // namespace

void CudaNormForward(device::CudaStream& stream, const CudaNorm& norm, const std::byte* bias,
                     float eps, std::byte* out, float* mean, float* rstd, float* largest) {
  WithElements(norm.dtype, norm.width, [&]<typename T, int N>() {
    for (const std::byte* operand :
         {norm.x, norm.weight, bias, static_cast<const std::byte*>(out)}) {
      PENSTOCK_CHECK(N == 1 || IsAligned(operand));
    }
    Launch(stream, "a layer norm", ForwardKernel<T, N>, {norm.rows, dim3(kThreads)}, norm.width,
           reinterpret_cast<const T*>(norm.x), reinterpret_cast<const T*>(norm.weight),
           reinterpret_cast<const T*>(bias), eps, reinterpret_cast<T*>(out), mean, rstd, largest);
  });
}

void CudaNormBackward(device::CudaStream& stream, const CudaNorm& norm, const float* mean,
                      const float* rstd, const std::byte* d_out, bool add_to_d_x, std::byte* d_x) {
  WithElements(norm.dtype, norm.width, [&]<typename T, int N>() {
    for (const std::byte* operand :
         {norm.x, norm.weight, d_out, static_cast<const std::byte*>(d_x)}) {
      PENSTOCK_CHECK(N == 1 || IsAligned(operand));
    }
    Launch(stream, "the gradient of a layer norm", BackwardKernel<T, N>,
           {norm.rows, dim3(kThreads)}, norm.width, reinterpret_cast<const T*>(norm.x),
           reinterpret_cast<const T*>(norm.weight), mean, rstd, reinterpret_cast<const T*>(d_out),
           add_to_d_x, reinterpret_cast<T*>(d_x));
  });
}

}  // namespace penstock::kernels
