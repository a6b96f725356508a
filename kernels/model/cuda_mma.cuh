// Operands of the warp's matrix product (kernels/model/cuda_ptx.cuh) out of shared memory and out
// of sums. All lanes of a warp call the functions together.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/dtype.h"
#include "kernels/model/cuda_ptx.cuh"

namespace penstock::kernels {

__device__ inline unsigned Lane() { return threadIdx.x % 32; }
/// For sums, return the row of values 0 and 1 (values 2 and 3 are 8 below), and the column of value
/// 0.
__device__ inline unsigned RowOfSums() { return Lane() / 4; }
__device__ inline unsigned ColumnOfSums() { return Lane() % 4 * 2; }

/// Sums of columns 0 … 7 and 8 … 15, rounded to T, as a left operand.
template <typename T>
__device__ inline Left AsLeft(const Sums& low, const Sums& high) {
  return {{PackPair<T>(low.values[0], low.values[1]), PackPair<T>(low.values[2], low.values[3]),
           PackPair<T>(high.values[0], high.values[1]),
           PackPair<T>(high.values[2], high.values[3])}};
}

/// The left operand that begins at `corner` of a row-major matrix in shared memory.
template <typename T>
__device__ inline Left LoadLeft(const T* corner, unsigned stride) {
  Left left;
  LoadMatrices(corner + Lane() % 16 * stride + Lane() / 16 * 8, left.pairs);
  return left;
}
/// right[k][n] = matrix[n][k], 16 x 16: the product with a transposed matrix.
template <typename T>
__device__ inline RightPair LoadRightTransposed(const T* corner, unsigned stride) {
  RightPair right;
  LoadMatrices(corner + (Lane() % 8 + Lane() / 16 * 8) * stride + Lane() / 8 % 2 * 8, right.pairs);
  return right;
}
/// right[k][n] = matrix[k][n], 16 x 16.
template <typename T>
__device__ inline RightPair LoadRight(const T* corner, unsigned stride) {
  RightPair right;
  LoadMatricesTransposed(corner + Lane() % 16 * stride + Lane() / 16 * 8, right.pairs);
  return right;
}

}  // namespace penstock::kernels
