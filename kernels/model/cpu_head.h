// The language-model head of the CPU operators: logits, loss and backward over chunks of rows.
//
// Threads: run by one thread at a time; uses OpenMP's pool of that thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "base/units.h"
#include "kernels/model/cpu_matmul.h"
#include "kernels/model/operator_calls.h"

namespace penstock::kernels {

/// See ModelOperators::HeadForwardBackward. d_x and d_table are null when only the loss is wanted;
/// d_x may be x.
struct HeadData {
  const std::byte* x = nullptr;
  const std::byte* table = nullptr;
  const int32_t* targets = nullptr;
  float gradient_scale = 1;
  double* loss_sum = nullptr;
  std::byte* d_x = nullptr;
  float* d_table = nullptr;
};

class Head {
 public:
  /// `adds_once`: see OperatorOptions.
  Head(const HeadCall& call, int threads, Bf16Arithmetic arithmetic, bool adds_once);

  Bytes scratch() const { return cursor_.used(); }
  void Run(const HeadData& data, std::byte* scratch);

 private:
  /// The products of a chunk of rows.
  struct Chunk {
    uint64_t rows = 0;
    std::unique_ptr<Product> logits;   ///< [rows, vocabulary] = x tableᵀ, fp32
    std::unique_ptr<Product> d_x;      ///< [rows, C] = d_logits table
    std::unique_ptr<Product> d_table;  ///< [vocabulary, C] += d_logitsᵀ x, fp32
  };

  Chunk MakeChunk(uint64_t rows, Bf16Arithmetic arithmetic) const;
  void RunChunks(const HeadData& data, std::byte* scratch);
  void RunChunk(const Chunk& chunk, uint64_t first_row, const HeadData& data, std::byte* scratch);

  const HeadCall call_;
  const int threads_;
  const uint64_t logit_stride_;
  Chunk chunk_;
  Chunk last_;  ///< rows that do not fill a chunk; empty if there are none
  ScratchCursor cursor_;
  uint64_t logits_;    ///< fp32 [chunk, logit_stride]
  uint64_t d_logits_;  ///< dtype [chunk, logit_stride]; for fp32 the logits themselves
  uint64_t losses_;    ///< double [chunk]
  /// fp32 [vocabulary, C]: what a call adds to d_table, where that is computed apart.
  std::optional<uint64_t> table_;
  uint64_t inner_;
};

}  // namespace penstock::kernels
