// One block of threads for each row.
#include "kernels/model/cuda_softmax.h"

#include <cfloat>

#include "kernels/cuda_elements.cuh"
#include "kernels/cuda_launch.cuh"
#include "kernels/cuda_reduce.cuh"

namespace penstock::kernels {
namespace {

/// Threads for a row of a vocabulary.
constexpr unsigned kVocabularyThreads = 512;

/// exp(x − highest) summed over the row: NaN if an element is NaN.
struct RowSum {
  float highest;
  float sum;
};
/// Reads the row once, N elements at a time: each thread sums relative to the highest of its own
/// elements so far. The last N may lie partly behind the row, where they count for nothing.
template <int N>
__device__ RowSum SumExponentials(const float* row, uint64_t n) {
  float own = -FLT_MAX;
  float sum = 0;
#pragma unroll 2
  for (uint64_t i = uint64_t{threadIdx.x} * N; i < n; i += uint64_t{blockDim.x} * N) {
    auto x = LoadPack<N>(row + i);
    if (i + N > n) {
      for (int j = 0; j < N; ++j) x.elements[j] = i + j < n ? x.elements[j] : -INFINITY;
    }
    float highest = own;
    for (int j = 0; j < N; ++j) highest = fmaxf(highest, x.elements[j]);
    sum *= expf(own - highest);
    for (int j = 0; j < N; ++j) sum += expf(x.elements[j] - highest);
    own = highest;
  }
  const float highest = MaximumOverBlock(own);
  return {highest, SumOverBlock(sum * expf(own - highest))};
}

/// `d_logits` may be the logits: each thread reads elements before it writes them, and the target's
/// is read before the sums are known.
template <typename T>
__global__ void CrossEntropyKernel(CudaCrossEntropy rows) {
  const uint64_t row = blockIdx.x;
  const float* const logits = rows.logits + row * rows.stride;
  const auto target = static_cast<uint64_t>(rows.targets[row]);
  const float target_logit = logits[target];
  const RowSum softmax = SumExponentials<kLogitPack>(logits, rows.vocabulary);
  if (threadIdx.x == 0) {
    rows.losses[row] = log(static_cast<double>(softmax.sum)) +
                       (static_cast<double>(softmax.highest) - static_cast<double>(target_logit));
  }
  if (rows.d_logits == nullptr) return;
  T* const d_logits = reinterpret_cast<T*>(rows.d_logits) + row * rows.stride;
  const float share = 1 / softmax.sum;
  constexpr unsigned kPack = kLogitPack;
  for (uint64_t i = uint64_t{threadIdx.x} * kPack; i < rows.stride;
       i += uint64_t{blockDim.x} * kPack) {
    Pack<T, kPack> gradient{};
    if (i < rows.vocabulary) {
      const auto x = LoadPack<kPack>(logits + i);
      const uint64_t ahead = target - i;  // far, if the target lies before i
      const unsigned at = ahead < kPack ? static_cast<unsigned>(ahead) : kPack;
      for (unsigned j = 0; j < kPack; ++j) {
        const float p = expf(x.elements[j] - softmax.highest) * share;
        gradient.elements[j] = FromFloat<T>(rows.gradient_scale * (p - (j == at ? 1.0f : 0.0f)));
      }
      if (i + kPack > rows.vocabulary) {
        for (unsigned j = 0; j < kPack; ++j) {
          if (i + j >= rows.vocabulary) gradient.elements[j] = FromFloat<T>(0);
        }
      }
    }
    StorePack(gradient, d_logits + i);
  }
}

/// One block, of which one thread adds.
__global__ void AddLossesKernel(uint64_t rows, const double* losses, double* sum) {
  __shared__ double staged[kThreads];
  double total = *sum;
  for (uint64_t begin = 0; begin < rows; begin += kThreads) {
    const uint64_t row = begin + threadIdx.x;
    __syncthreads();
    staged[threadIdx.x] = row < rows ? losses[row] : 0;
    __syncthreads();
    const uint64_t count = min(uint64_t{kThreads}, rows - begin);
    if (threadIdx.x == 0) {
      for (uint64_t i = 0; i < count; ++i) total += staged[i];
    }
  }
  if (threadIdx.x == 0) *sum = total;
}

__global__ void CausalSoftmaxKernel(uint64_t n, float* scores) {
  float* const row = scores + blockIdx.x * n;
  const uint64_t visible = blockIdx.x % n + 1;
  const RowSum softmax = SumExponentials<1>(row, visible);
  for (uint64_t i = threadIdx.x; i < n; i += blockDim.x) {
    row[i] = i < visible ? expf(row[i] - softmax.highest) / softmax.sum : 0;
  }
}

__global__ void CausalSoftmaxBackwardKernel(uint64_t n, float scale, const float* p, float* d_p) {
  p += blockIdx.x * n;
  d_p += blockIdx.x * n;
  const uint64_t visible = blockIdx.x % n + 1;
  float sum = 0;
  for (uint64_t i = threadIdx.x; i < visible; i += blockDim.x) sum = fmaf(p[i], d_p[i], sum);
  sum = SumOverBlock(sum);
  for (uint64_t i = threadIdx.x; i < n; i += blockDim.x) {
    d_p[i] = i < visible ? scale * p[i] * (d_p[i] - sum) : 0;
  }
}

}  // namespace

void CudaCrossEntropyRows(device::CudaStream& stream, const CudaCrossEntropy& rows) {
  WithElements(rows.dtype, 1, [&]<typename T, int N>() {
    Launch(stream, "the loss", CrossEntropyKernel<T>, {rows.rows, dim3(kVocabularyThreads)}, rows);
  });
}

void CudaAddLosses(device::CudaStream& stream, uint64_t rows, const double* losses, double* sum) {
  Launch(stream, "the sum of losses", AddLossesKernel, {1, dim3(kThreads)}, rows, losses, sum);
}

void CudaCausalSoftmax(device::CudaStream& stream, uint64_t matrices, uint64_t n, float* scores) {
  Launch(stream, "a causal softmax", CausalSoftmaxKernel, {matrices * n, dim3(kThreads)}, n,
         scores);
}

void CudaCausalSoftmaxBackward(device::CudaStream& stream, uint64_t matrices, uint64_t n,
                               float scale, const float* p, float* d_p) {
  Launch(stream, "the gradient of a causal softmax", CausalSoftmaxBackwardKernel,
         {matrices * n, dim3(kThreads)}, n, scale, p, d_p);
}

}  // namespace penstock::kernels
