// How the CUDA operators cut their work, and the scratch memory that this takes.
//
// All of it follows from the shapes, never from a budget or a GPU, so that a plan can be made where
// there is no GPU. Scratch is the workspace of cuBLASLt, and behind it what one operator at a time
// needs.
#pragma once

#include <cstdint>
#include <optional>

#include "base/units.h"
#include "kernels/model/operator_calls.h"

namespace penstock::kernels {

/// What cuBLASLt may use at once; it recommends this much for the H100.
inline constexpr Bytes kCudaWorkspace = 32_MiB;

/// Sums over rows are taken in parts of rows, which are added up in order.
struct RowParts {
  explicit RowParts(uint64_t rows);

  uint64_t rows_of_part;
  uint64_t count;
};

// Offsets in a call's scratch lie behind the workspace.

struct CudaHeadPlan {
  /// `adds_once`: see OperatorOptions.
  CudaHeadPlan(const HeadCall& call, bool adds_once);

  uint64_t rows;          ///< of a chunk; the last may have fewer
  uint64_t logit_stride;  ///< elements from a row of logits to the next
  uint64_t gradient;      ///< 16 bits: the gradient of the logits; fp32: the logits themselves
  uint64_t losses;
  /// What a call adds to the table's gradient, where that is computed apart.
  std::optional<uint64_t> table;
  Bytes scratch;
};

struct CudaAttentionPlan {
  explicit CudaAttentionPlan(const AttentionCall& call);

  uint64_t heads;   ///< fp32: those of one sequence whose scores exist at once
  uint64_t second;  ///< 16 bits: Σ p d_p of the rows; fp32: gradients of the scores
  Bytes scratch;
};

/// What one call needs. `adds_once`: see OperatorOptions.
Bytes CudaScratch(const OperatorCall& call, bool adds_once);
/// What the calls of a model need, one at a time; workspace included.
Bytes CudaScratch(const OperatorCalls& calls, bool adds_once);

}  // namespace penstock::kernels
