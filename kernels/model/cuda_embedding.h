// The embedding's CUDA kernels. They enqueue and return; see ModelOperators for what they compute.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/device.h"
#include "kernels/dtype.h"

namespace penstock::kernels {

struct CudaEmbedding {
  DType dtype;
  uint64_t rows;
  uint64_t sequence;
  uint64_t width;
  const int32_t* tokens;
  bool adds_once;  ///< backward: see ModelOperators::EmbeddingBackward
};

void CudaEmbeddingForward(device::CudaStream& stream, const CudaEmbedding& embedding,
                          const std::byte* token_table, const std::byte* position_table,
                          std::byte* out);
/// `links`: scratch for 2 · rows integers.
void CudaEmbeddingBackward(device::CudaStream& stream, const CudaEmbedding& embedding,
                           const std::byte* d_out, int32_t* links, float* d_token_table,
                           float* d_position_table);

}  // namespace penstock::kernels
