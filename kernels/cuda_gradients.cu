// What the optimizer needs on the GPU: rounding, sums of squares, Adam. Every bit is the CPU's: the
// roundings and Adam's operations are the same functions of IEEE arithmetic, and sums go in the
// order that block_sums.h states.
#include "kernels/cuda_elements.cuh"
#include "kernels/cuda_elementwise.h"
#include "kernels/cuda_launch.cuh"
#include "kernels/cuda_reduce.cuh"

namespace penstock::kernels {
namespace {

template <typename T>
__global__ void RoundKernel(uint64_t n, const float* in, T* out) {
  const uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < n) out[i] = FromFloat<T>(in[i]);
}

/// Partial sums of a block of the flat index.
constexpr unsigned kPartials = 16;

/// 16 threads to a sum: thread j takes elements j, j + 16, … in order.
template <typename T>
__global__ void BlockSumsKernel(uint64_t blocks, const T* gradient, double* sums) {
  const uint64_t thread = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const uint64_t block = thread / kPartials;
  double sum = 0;
  if (block < blocks) {
    const T* const from = gradient + block * kBlockElements + thread % kPartials;
    for (uint64_t i = 0; i < kBlockElements; i += kPartials) {
      const double value = ToFloat(from[i]);
      sum = fma(value, value, sum);
    }
  }
  // Addition commutes, so that both sides of a pair get s[j] + s[j + distance].
  for (unsigned distance = kPartials / 2; distance > 0; distance /= 2) {
    sum += __shfl_xor_sync(kAllLanes, sum, distance);
  }
  if (block < blocks && thread % kPartials == 0) sums[block] = sum;
}

/// One block. A sum is finite when all its elements are.
__global__ void FiniteKernel(uint64_t blocks, const double* sums, uint32_t* finite) {
  int mine = 1;
  for (uint64_t i = threadIdx.x; i < blocks; i += blockDim.x) mine &= isfinite(sums[i]) ? 1 : 0;
  const int all = __syncthreads_and(mine);
  if (threadIdx.x == 0) *finite = static_cast<uint32_t>(all);
}

/// kernels/adam.cc's UpdateElement, operation by operation.
__device__ float UpdateElement(const AdamScalars& s, float w, float gradient, float& m, float& v) {
  float g = __fmul_rn(gradient, s.grad_scale);
  if (!s.adam_w_mode && s.decay != 0) g = __fmaf_rn(w, s.decay, g);
  m = __fmaf_rn(g, s.one_minus_beta1, __fmul_rn(m, s.beta1));
  v = __fmaf_rn(__fmul_rn(g, g), s.one_minus_beta2, __fmul_rn(v, s.beta2));
  const float d = __fdiv_rn(m, __fmaf_rn(__fsqrt_rn(v), s.rsqrt_bias2, s.eps));
  if (s.adam_w_mode && s.decay != 0) w = __fmaf_rn(w, s.decay, w);
  return __fmaf_rn(d, s.negative_step_size, w);
}

/// The master as a float, or split.
struct WholeWeights {
  float* weight;
  __device__ float Load(uint64_t i) const { return weight[i]; }
  __device__ void Store(uint64_t i, float value) const { weight[i] = value; }
};
struct SplitWeights {
  BFloat16* hi;
  int16_t* lo;
  __device__ float Load(uint64_t i) const { return Join(SplitMaster{hi[i], lo[i]}); }
  __device__ void Store(uint64_t i, float value) const {
    const SplitMaster split = Split(value);
    hi[i] = split.hi;
    lo[i] = split.lo;
  }
};

template <typename Weights, typename Gradient>
__global__ void AdamKernel(uint64_t n, AdamScalars scalars, Weights weights, float* exp_avg,
                           float* exp_avg_sq, const Gradient* gradient) {
  const uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float m = exp_avg[i];
  float v = exp_avg_sq[i];
  const float w = UpdateElement(scalars, weights.Load(i), ToFloat(gradient[i]), m, v);
  exp_avg[i] = m;
  exp_avg_sq[i] = v;
  weights.Store(i, w);
}

template <typename Weights>
void LaunchAdam(device::CudaStream& stream, const AdamScalars& scalars, const OptimizerTile& tile,
                const Weights& weights) {
  const uint64_t n = ElementCount(tile);
  const auto launch = [&]<typename Gradient>(const Gradient* gradient) {
    Launch(stream, "adam", AdamKernel<Weights, Gradient>, OneThreadEach(n), n, scalars, weights,
           tile.exp_avg.data(), tile.exp_avg_sq.data(), gradient);
  };
  if (tile.gradient_dtype == DType::kBFloat16) {
    launch(static_cast<const BFloat16*>(tile.gradient));
  } else {
    launch(static_cast<const float*>(tile.gradient));
  }
}

}  // namespace

void CudaRoundGradients(device::CudaStream& stream, const float* in, DType dtype, uint64_t n,
                        std::byte* out) {
  const auto launch = [&]<typename T>(T* to) {
    Launch(stream, "the rounding of gradients", RoundKernel<T>, OneThreadEach(n), n, in, to);
  };
  switch (dtype) {
    case DType::kFloat32:
      return launch(reinterpret_cast<float*>(out));
    case DType::kBFloat16:
      return launch(reinterpret_cast<BFloat16*>(out));
    case DType::kFloat16:
      return launch(reinterpret_cast<Float16*>(out));
  }
}

void CudaBlockSums(device::CudaStream& stream, const std::byte* gradient, DType dtype, uint64_t n,
                   double* sums, uint32_t* finite) {
  PENSTOCK_CHECK(n % kBlockElements == 0, "{} elements are no whole blocks", n);
  const uint64_t blocks = n / kBlockElements;
  WithElements(dtype, 1, [&]<typename T, int N>() {
    Launch(stream, "block sums", BlockSumsKernel<T>, OneThreadEach(blocks * kPartials), blocks,
           reinterpret_cast<const T*>(gradient), sums);
  });
  Launch(stream, "the finite flag", FiniteKernel, {1, dim3(kThreads)}, blocks, sums, finite);
}

void CudaAdam(device::CudaStream& stream, const AdamScalars& scalars, const OptimizerTile& tile) {
  PENSTOCK_CHECK(
      tile.exp_avg_bf16.empty() && tile.weight_bf16.empty() && tile.weight_fp16.empty() &&
          tile.gradient_dtype != DType::kFloat16,
      "Adam on the device has fp32 moments, no copy of the weight, and no fp16 gradient");
  if (tile.weight.empty()) {
    LaunchAdam(stream, scalars, tile, SplitWeights{tile.weight_hi.data(), tile.weight_lo.data()});
  } else {
    LaunchAdam(stream, scalars, tile, WholeWeights{tile.weight.data()});
  }
}

}  // namespace penstock::kernels
