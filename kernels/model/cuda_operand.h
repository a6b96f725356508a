// An operand of a product on the CUDA device, with its layout in memory.
#pragma once

#include <cstdint>

#include "kernels/dtype.h"

namespace penstock::kernels {

/// Alignment in bytes that kernels benefit from; more gains nothing.
inline constexpr uint32_t kCudaGoodAlignment = 16;

struct CudaOperand {
  DType dtype = DType::kFloat32;
  uint64_t stride = 0;  ///< elements from a row to the next
  bool transposed = false;
  uint64_t batch_stride = 0;  ///< elements from a matrix to the next
  /// It begins a multiple of so many elements behind an address of kCudaGoodAlignment, as a tensor
  /// does that lies behind others; 0: at such an address, or a multiple of its strides behind one.
  uint64_t unit = 0;
};

/// The largest power of two, up to kCudaGoodAlignment, that divides the address of every row of
/// every matrix, in bytes. Follows from the shapes alone, as must what is chosen by it.
inline uint32_t AlignmentOf(const CudaOperand& operand) {
  const uint64_t apart = operand.stride | operand.batch_stride | operand.unit;
  const uint64_t bits = apart * SizeOf(operand.dtype).value | kCudaGoodAlignment;
  return static_cast<uint32_t>(bits & (~bits + 1));  // the lowest bit that is set
}

/// Whether a product with these weights and this result may have GELU in its epilogue. cuBLASLt
/// asks for rows of multiples of 8 elements of what GELU is taken of, which lies like the result; a
/// bias lies as the weights do, and should be aligned, too. In fp32 the digits that it leaves would
/// be seen.
inline bool TakesGelu(const CudaOperand& weight, const CudaOperand& result) {
  return result.dtype != DType::kFloat32 && AlignmentOf(result) == kCudaGoodAlignment &&
         AlignmentOf(weight) == kCudaGoodAlignment;
}

}  // namespace penstock::kernels
