// How the CUDA operators cut their work, and the scratch memory that this takes.
//
// All of it follows from the shapes, never from a budget or a GPU, so that a plan can be made where
// there is no GPU. Scratch is the workspace of cuBLASLt, and behind it what one operator at a time
// needs.
#pragma once

#include <cstdint>

#include "base/units.h"
#include "kernels/model/operators.h"

namespace penstock::kernels {

/// What cuBLASLt may use at once; it recommends this much for the H100.
inline constexpr Bytes kCudaWorkspace = 32_MiB;

/// Sums over rows are taken in parts of rows, which are added up in order.
struct RowParts {
  explicit RowParts(uint64_t rows);

  uint64_t rows_of_part;
  uint64_t count;
};

struct CudaPlan {
  explicit CudaPlan(const OperatorOptions& options);

  RowParts parts;
  uint64_t head_rows;        ///< rows of the head's chunks; the last may have fewer
  uint64_t logit_stride;     ///< elements from a row of logits to the next
  uint64_t attention_heads;  ///< fp32: heads of one sequence whose scores exist at once

  // Offsets behind the workspace.
  uint64_t head_gradient;  ///< bf16: the gradient of the logits; fp32: the logits themselves
  uint64_t head_losses;
  uint64_t attention_second;  ///< bf16: Σ p d_p of the rows; fp32: gradients of the scores

  Bytes scratch;  ///< workspace included
};

}  // namespace penstock::kernels
