#include "kernels/model/cuda_column_sums.h"

#include "kernels/cuda_elements.cuh"
#include "kernels/cuda_launch.cuh"

namespace penstock::kernels {
namespace {

/// Threads of a block: columns side by side, and rows in turn.
constexpr unsigned kColumns = 32;
constexpr unsigned kRows = 8;

template <typename T>
struct BiasTerm {
  const T* d_out;
  __device__ float operator()(uint64_t, uint64_t at) const { return ToFloat(d_out[at]); }
};

template <typename T>
struct NormWeightTerm {
  const T* d_out;
  const T* x;
  const float* mean;
  const float* rstd;
  __device__ float operator()(uint64_t row, uint64_t at) const {
    return ToFloat(d_out[at]) * ((ToFloat(x[at]) - mean[row]) * rstd[row]);
  }
};

/// partial[part, column]: block (tile of columns, part). Thread row y takes rows y, y + 8, … of the
/// part; the eight are then added in order.
template <typename Term>
__global__ void PartialKernel(uint64_t rows, uint64_t rows_of_part, uint64_t columns,
                              uint64_t column_tiles, Term term, float* partial) {
  __shared__ float sums[kRows][kColumns];
  const uint64_t part = blockIdx.x / column_tiles;
  const uint64_t column = blockIdx.x % column_tiles * kColumns + threadIdx.x;
  const uint64_t begin = part * rows_of_part;
  const uint64_t end = min(begin + rows_of_part, rows);
  float sum = 0;
  if (column < columns) {
    for (uint64_t row = begin + threadIdx.y; row < end; row += kRows) {
      sum += term(row, row * columns + column);
    }
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= columns) return;
  for (unsigned y = 1; y < kRows; ++y) sum += sums[y][threadIdx.x];
  partial[part * columns + column] = sum;
}

__global__ void AddPartialsKernel(uint64_t parts, uint64_t columns, const float* partial,
                                  float* sums) {
  const uint64_t column = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (column >= columns) return;
  float sum = 0;
  for (uint64_t part = 0; part < parts; ++part) sum += partial[part * columns + column];
  sums[column] += sum;
}

template <typename Term>
void AddColumnSums(device::CudaStream& stream, const char* what, uint64_t rows, uint64_t columns,
                   const Term& term, float* partial, float* sums) {
  const RowParts parts(rows);
  const uint64_t column_tiles = DivideUp(columns, kColumns);
  Launch(stream, what, PartialKernel<Term>, {parts.count * column_tiles, dim3(kColumns, kRows)},
         rows, parts.rows_of_part, columns, column_tiles, term, partial);
  Launch(stream, what, AddPartialsKernel, OneThreadEach(columns), parts.count, columns, partial,
         sums);
}

}  // namespace

void CudaAddBiasGradient(device::CudaStream& stream, DType dtype, uint64_t rows, uint64_t columns,
                         const std::byte* d_out, float* partial, float* sums) {
  WithElements(dtype, 1, [&]<typename T, int N>() {
    AddColumnSums(stream, "the gradient of a bias", rows, columns,
                  BiasTerm<T>{reinterpret_cast<const T*>(d_out)}, partial, sums);
  });
}

void CudaAddNormWeightGradient(device::CudaStream& stream, DType dtype, uint64_t rows,
                               uint64_t columns, const std::byte* d_out, const std::byte* x,
                               const float* mean, const float* rstd, float* partial, float* sums) {
  WithElements(dtype, 1, [&]<typename T, int N>() {
    AddColumnSums(stream, "the gradient of a norm's weight", rows, columns,
                  NormWeightTerm<T>{reinterpret_cast<const T*>(d_out),
                                    reinterpret_cast<const T*>(x), mean, rstd},
                  partial, sums);
  });
}

}  // namespace penstock::kernels
