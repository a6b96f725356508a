// Gradients on the GPU: rounding and sums of squares. Every bit is the CPU's: the roundings are the
// same functions, and sums go in the order that block_sums.h states.
#include "kernels/state/cuda_gradients.h"

#include "kernels/cuda_elements.cuh"
#include "kernels/cuda_launch.cuh"
#include "kernels/cuda_reduce.cuh"
#include "kernels/state/block_sums.h"

namespace penstock::kernels {
namespace {

template <typename T>
__global__ void RoundKernel(uint64_t n, const float* in, T* out) {
  const uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < n) out[i] = FromFloat<T>(in[i]);
}

template <typename T>
__global__ void AddInOrderKernel(uint64_t n, uint64_t stride, uint64_t count, const T* parts,
                                 float* sums) {
  const uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float sum = sums[i];
  for (uint64_t part = 0; part < count; ++part) sum += ToFloat(parts[part * stride + i]);
  sums[i] = sum;
}

template <typename T>
__global__ void AddGradientKernel(uint64_t n, bool first, const T* values, float* sums) {
  const uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < n) sums[i] = first ? ToFloat(values[i]) : sums[i] + ToFloat(values[i]);
}

/// Partial sums of a block of the flat index.
constexpr unsigned kPartials = 16;

/// 16 threads to a sum: thread j takes elements j, j + 16, … in order. First come the blocks, then
/// the ends. The other figures are left out where `largest` is null.
template <typename T>
__global__ void BlockSumsKernel(uint64_t blocks, const T* gradient, uint64_t end_count,
                                const GradientEnd* ends, double* sums, float* largest,
                                uint32_t* nonfinite) {
  const uint64_t thread = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const uint64_t sum_of = thread / kPartials;
  double sum = 0;
  float most = 0;
  uint32_t count = 0;
  if (sum_of < blocks + end_count) {
    const bool whole = sum_of < blocks;
    const T* const from =
        gradient + (whole ? sum_of * kBlockElements : ends[sum_of - blocks].begin);
    const uint64_t elements = whole ? kBlockElements : ends[sum_of - blocks].elements;
    for (uint64_t i = thread % kPartials; i < elements; i += kPartials) {
      const float element = ToFloat(from[i]);
      const double value = element;
      sum = fma(value, value, sum);
      if (isfinite(element)) {
        most = fmaxf(most, fabsf(element));
      } else {
        ++count;
      }
    }
  }
  // Addition commutes, so that both sides of a pair get s[j] + s[j + distance].
  for (unsigned distance = kPartials / 2; distance > 0; distance /= 2) {
    sum += __shfl_xor_sync(kAllLanes, sum, distance);
    most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, distance));
    count += __shfl_xor_sync(kAllLanes, count, distance);
  }
  if (sum_of >= blocks + end_count || thread % kPartials != 0) return;
  sums[sum_of] = sum;
  if (largest == nullptr) return;
  largest[sum_of] = most;
  nonfinite[sum_of] = count;
}

/// One block. A sum is finite when all its elements are.
__global__ void FiniteKernel(uint64_t blocks, const double* sums, uint32_t* finite) {
  int mine = 1;
  for (uint64_t i = threadIdx.x; i < blocks; i += blockDim.x) mine &= isfinite(sums[i]) ? 1 : 0;
  const int all = __syncthreads_and(mine);
  if (threadIdx.x == 0) *finite = static_cast<uint32_t>(all);
}

struct Count {
  __device__ unsigned long long operator()(unsigned long long a, unsigned long long b) const {
    return a + b;
  }
};

/// A block of elements to a block of threads.
__global__ void ZeroCountsKernel(uint64_t n, const float* values, unsigned long long* exact,
                                 unsigned long long* rounded) {
  unsigned long long zeros = 0, small = 0;
  const uint64_t begin = uint64_t{blockIdx.x} * kBlockElements;
  for (uint64_t i = begin + threadIdx.x; i < begin + kBlockElements && i < n; i += blockDim.x) {
    zeros += values[i] == 0 ? 1 : 0;
    small += fabsf(values[i]) <= kMaxZeroInFloat16 ? 1 : 0;
  }
  zeros = ReduceBlock(zeros, Count());
  small = ReduceBlock(small, Count());
  if (threadIdx.x != 0) return;
  atomicAdd(exact, zeros);
  atomicAdd(rounded, small);
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

void CudaAddInOrder(device::CudaStream& stream, float* sums, uint64_t n, const ElementRows& parts) {
  WithElements(parts.dtype, 1, [&]<typename T, int N>() {
    Launch(stream, "the sum of the ranks' gradients", AddInOrderKernel<T>, OneThreadEach(n), n,
           parts.stride, parts.count, reinterpret_cast<const T*>(parts.data), sums);
  });
}

void CudaAddGradient(device::CudaStream& stream, const std::byte* values, DType dtype, uint64_t n,
                     bool first, float* sums) {
  WithElements(dtype, 1, [&]<typename T, int N>() {
    Launch(stream, "the sum of a gradient", AddGradientKernel<T>, OneThreadEach(n), n, first,
           reinterpret_cast<const T*>(values), sums);
  });
}

void CudaGradientFigures(device::CudaStream& stream, const std::byte* gradient, DType dtype,
                         uint64_t n, std::span<const GradientEnd> ends,
                         const DeviceBlockFigures& figures) {
  PENSTOCK_CHECK(n % kBlockElements == 0, "{} elements are no whole blocks", n);
  const uint64_t blocks = n / kBlockElements;
  WithElements(dtype, 1, [&]<typename T, int N>() {
    Launch(stream, "block sums", BlockSumsKernel<T>,
           OneThreadEach((blocks + ends.size()) * kPartials), blocks,
           reinterpret_cast<const T*>(gradient), ends.size(), ends.data(), figures.sums,
           figures.largest, figures.nonfinite);
  });
}

void CudaBlockSums(device::CudaStream& stream, const std::byte* gradient, DType dtype, uint64_t n,
                   double* sums, uint32_t* finite) {
  CudaGradientFigures(stream, gradient, dtype, n, {}, {.sums = sums});
  Launch(stream, "the finite flag", FiniteKernel, {1, dim3(kThreads)}, n / kBlockElements, sums,
         finite);
}

void CudaAddZeroCounts(device::CudaStream& stream, const float* values, uint64_t n,
                       ZeroCounts* counts) {
  static_assert(sizeof(uint64_t) == sizeof(unsigned long long));
  Launch(stream, "counts of zeros", ZeroCountsKernel,
         LaunchShape{DivideUp(n, kBlockElements), dim3(kThreads)}, n, values,
         reinterpret_cast<unsigned long long*>(&counts->exact),
         reinterpret_cast<unsigned long long*>(&counts->rounded));
}

}  // namespace penstock::kernels
