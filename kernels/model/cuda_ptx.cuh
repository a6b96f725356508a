// One warp's matrix product of 16 x 16 by 16 x 8 in bf16 or fp16 with fp32 sums, and what loads its
// operands from shared memory: the instructions of PTX (mma.m16n8k16, ldmatrix).
// kernels/model/cuda_fragments.h says which lane holds what. All lanes of a warp call these
// functions together. Also instructions of single threads: copies to shared memory (cp.async),
// powers of 2 (ex2).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "kernels/dtype.h"
#include "kernels/model/cuda_fragments.h"

namespace penstock::kernels {

/// Both rounded to T (BFloat16 or Float16), to nearest even.
template <typename T>
__device__ inline uint32_t PackPair(float low, float high) {
  uint32_t pair;
  if constexpr (std::is_same_v<T, BFloat16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  }
  return pair;
}

/// sums += left · right, the half of `right` that `half` (0 or 1) says; elements are T.
template <typename T>
__device__ inline void MultiplyAdd(const Left& left, const RightPair& right, int half, Sums& sums) {
#define PENSTOCK_MMA(type)                                                                       \
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type                            \
               ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"            \
               : "+f"(sums.values[0]), "+f"(sums.values[1]), "+f"(sums.values[2]),               \
                 "+f"(sums.values[3])                                                            \
               : "r"(left.pairs[0]), "r"(left.pairs[1]), "r"(left.pairs[2]), "r"(left.pairs[3]), \
                 "r"(right.pairs[2 * half]), "r"(right.pairs[2 * half + 1]))
  if constexpr (std::is_same_v<T, BFloat16>) {
    PENSTOCK_MMA("bf16");
  } else {
    PENSTOCK_MMA("f16");
  }
#undef PENSTOCK_MMA
}

/// Four 8 x 8 matrices: lane 8 i + j gives the address of row j of matrix i, and each lane gets of
/// each matrix row g, columns 2t and 2t + 1.
template <typename T>
__device__ inline void LoadMatrices(const T* row, uint32_t (&pairs)[4]) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(pairs[0]), "=r"(pairs[1]), "=r"(pairs[2]), "=r"(pairs[3])
               : "r"(address)
               : "memory");
}
/// The same of the transposed matrices: column g, rows 2t and 2t + 1.
template <typename T>
__device__ inline void LoadMatricesTransposed(const T* row, uint32_t (&pairs)[4]) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(pairs[0]), "=r"(pairs[1]), "=r"(pairs[2]), "=r"(pairs[3])
               : "r"(address)
               : "memory");
}

/// Begins to copy 16 bytes from global to shared memory, or to zero them there if not `inside`;
/// both addresses are multiples of 16 bytes.
template <typename T>
__device__ inline void Copy16Bytes(const T* from, bool inside, T* to) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(address), "l"(__cvta_generic_to_global(from)), "r"(inside ? 16 : 0)
               : "memory");
}
/// Waits for all copies that the thread has begun. A barrier shows them to other threads.
__device__ inline void WaitForCopies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

/// 2 to the power of x to a relative error of 2^-22; what is below 2^-126 is zero.
__device__ inline float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace penstock::kernels
