// One warp's matrix product of 16 x 16 by 16 x 8 in bf16 with fp32 sums, and how its operands come
// from shared memory (PTX: mma.m16n8k16, ldmatrix).
//
// Who holds what, with g = lane / 4 and t = lane % 4:
//   sums [16][8]   0, 1: row g, columns 2t, 2t + 1    2, 3: row g + 8, the same columns
//   left [16][16]  registers of two elements each: row g, columns 2t, 2t + 1; row g + 8, the same;
//                  row g, columns 2t + 8, 2t + 9; row g + 8, the same
//   right [16][8]  column g, rows 2t, 2t + 1; column g, rows 2t + 8, 2t + 9
// All lanes of a warp call the functions together.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/dtype.h"

namespace penstock::kernels {

struct Sums {
  float values[4] = {};
};
struct Left {
  uint32_t pairs[4];
};
/// Two right operands: columns 0 … 7 and 8 … 15.
struct RightPair {
  uint32_t pairs[4];
};

__device__ inline unsigned Lane() { return threadIdx.x % 32; }
/// Of sums: the row of values 0 and 1 (values 2 and 3 are 8 below), and the column of value 0.
__device__ inline unsigned RowOfSums() { return Lane() / 4; }
__device__ inline unsigned ColumnOfSums() { return Lane() % 4 * 2; }

/// Both rounded to nearest even.
__device__ inline uint32_t PackPair(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

/// Sums of columns 0 … 7 and 8 … 15, rounded, as a left operand.
__device__ inline Left AsLeft(const Sums& low, const Sums& high) {
  return {{PackPair(low.values[0], low.values[1]), PackPair(low.values[2], low.values[3]),
           PackPair(high.values[0], high.values[1]), PackPair(high.values[2], high.values[3])}};
}

/// sums += left · right, the half of `right` that `half` (0 or 1) says.
__device__ inline void MultiplyAdd(const Left& left, const RightPair& right, int half, Sums& sums) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums.values[0]), "+f"(sums.values[1]), "+f"(sums.values[2]), "+f"(sums.values[3])
      : "r"(left.pairs[0]), "r"(left.pairs[1]), "r"(left.pairs[2]), "r"(left.pairs[3]),
        "r"(right.pairs[2 * half]), "r"(right.pairs[2 * half + 1]));
}

/// Four 8 x 8 matrices: lane 8 i + j gives the address of row j of matrix i, and each lane gets of
/// each matrix row g, columns 2t and 2t + 1.
__device__ inline void LoadMatrices(const BFloat16* row, uint32_t (&pairs)[4]) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(pairs[0]), "=r"(pairs[1]), "=r"(pairs[2]), "=r"(pairs[3])
               : "r"(address)
               : "memory");
}
/// The same of the transposed matrices: column g, rows 2t and 2t + 1.
__device__ inline void LoadMatricesTransposed(const BFloat16* row, uint32_t (&pairs)[4]) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(pairs[0]), "=r"(pairs[1]), "=r"(pairs[2]), "=r"(pairs[3])
               : "r"(address)
               : "memory");
}

/// The left operand that begins at `corner` of a row-major matrix in shared memory.
__device__ inline Left LoadLeft(const BFloat16* corner, unsigned stride) {
  Left left;
  LoadMatrices(corner + Lane() % 16 * stride + Lane() / 16 * 8, left.pairs);
  return left;
}
/// right[k][n] = matrix[n][k], 16 x 16: the product with a transposed matrix.
__device__ inline RightPair LoadRightTransposed(const BFloat16* corner, unsigned stride) {
  RightPair right;
  LoadMatrices(corner + (Lane() % 8 + Lane() / 16 * 8) * stride + Lane() / 8 % 2 * 8, right.pairs);
  return right;
}
/// right[k][n] = matrix[k][n], 16 x 16.
__device__ inline RightPair LoadRight(const BFloat16* corner, unsigned stride) {
  RightPair right;
  LoadMatricesTransposed(corner + Lane() % 16 * stride + Lane() / 16 * 8, right.pairs);
  return right;
}

}  // namespace penstock::kernels
