// Plans how the CUDA operators cut their work, and their scratch memory.
//
// All of it follows from the shapes, never from a budget or a GPU, so that a plan can be made
// without a GPU. Scratch is the workspace of cuBLASLt, followed by that of one operator at a time.
#pragma once

#include <cstdint>
#include <optional>

#include "base/units.h"
#include "kernels/model/model_operators.h"

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

/// Columns of logits that fast products have a multiple of.
inline constexpr uint64_t kLogitColumns = 64;

/// cuBLASLt takes its fast kernels where the columns of the logits, which are the inner dimension
/// of one product, are a multiple of 16 bytes; how far apart rows lie makes no difference. So a
/// vocabulary of another size is cut in two: `whole` columns, a multiple of kLogitColumns, and the
/// rest, which products see as kLogitColumns, with rows of zeros behind a copy of the table's end.
struct CudaHeadPlan {
  /// `adds_once`: see OperatorOptions.
  CudaHeadPlan(const HeadCall& call, bool adds_once);

  uint64_t whole;         ///< columns of the first products; none if the vocabulary is small
  uint64_t rest;          ///< columns after them, fewer than kLogitColumns
  uint64_t rows;          ///< rows of a chunk; the last may have fewer
  uint64_t logit_stride;  ///< elements from a row of logits to the next: whole kLogitColumns
  /// The gradient of the input is the sum of two products. In 16 bits they are added up in fp32,
  /// where the logits were, and then rounded.
  bool sums_d_x;
  uint64_t gradient;  ///< 16 bits: the gradient of the logits; fp32: the logits themselves
  uint64_t losses;
  uint64_t table_end;  ///< [kLogitColumns, C]: the table's last `rest` rows, zeros behind them
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

/// Gradients of scores, in 16 bits, that cuDNN's backward keeps at once: enough heads to fill a
/// large GPU, in a memory that it can spare.
inline constexpr Bytes kCudnnScores = 512_MiB;

/// Attention by cuDNN. Up to the H100 its deterministic backward keeps the gradients of the scores
/// of all heads that one call has, so that backward goes through the heads in groups.
struct CudnnAttentionPlan {
  explicit CudnnAttentionPlan(const AttentionCall& call, Bytes scores = kCudnnScores);

  uint64_t sequences;  ///< sequences of a group; they divide the batch
  uint64_t heads;      ///< heads of a group: all, or a divisor of all for one sequence
  Bytes workspace;     ///< cuDNN's limit for a group, or for all of forward
  Bytes statistics;    ///< kept from forward to backward
};

/// What one call needs while it runs.
Bytes CudaScratch(const OperatorCall& call, const OperatorOptions& options);
/// What the calls need, one at a time; workspace and what attention keeps included.
struct CudaScratchPlan {
  explicit CudaScratchPlan(const OperatorOptions& options);

  Bytes shared;  ///< memory of one call at a time, after kCudaWorkspace
  Bytes kept;    ///< behind that: the statistics of each attention by cuDNN, in the calls' order
  Bytes all;
};

}  // namespace penstock::kernels
