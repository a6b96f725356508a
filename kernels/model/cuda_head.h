// The language-model head of the CUDA operators: logits, loss and backward over chunks of rows.
//
// Threads: as the operators.
#pragma once

#include <memory>

#include "base/result.h"
#include "kernels/model/cuda_plan.h"
#include "kernels/model/cuda_product.h"
#include "kernels/model/operator_calls.h"

namespace penstock::kernels {

/// See ModelOperators::HeadForwardBackward.
struct CudaHeadData {
  const std::byte* x = nullptr;
  const std::byte* table = nullptr;
  const int32_t* targets = nullptr;
  float gradient_scale = 1;
  double* loss_sum = nullptr;
  std::byte* d_x = nullptr;
  float* d_table = nullptr;
};

class CudaHead {
 public:
  /// `adds_once`: see OperatorOptions.
  static Result<std::unique_ptr<CudaHead>> Create(const CudaBlas& blas, const HeadCall& call,
                                                  bool adds_once);
  void Run(device::CudaStream& stream, const CudaHeadData& data, std::byte* scratch);

 private:
  /// The products of some rows with some columns of the vocabulary; none of no columns.
  struct Products {
    std::unique_ptr<CudaProduct> logits;   ///< [rows, columns] = x tableᵀ, fp32
    std::unique_ptr<CudaProduct> d_x;      ///< [rows, C] = d_logits table
    std::unique_ptr<CudaProduct> d_table;  ///< [columns, C] += d_logitsᵀ x, fp32
  };
  /// A chunk of rows; see CudaHeadPlan.
  struct Chunk {
    uint64_t rows = 0;
    Products whole;
    Products rest;
  };

  CudaHead(const HeadCall& call, bool adds_once) : call_(call), plan_(call, adds_once) {}
  Result<Chunk> MakeChunk(const CudaBlas& blas, uint64_t rows) const;
  /// `columns`: of the logits; the table has `tokens` of them.
  Result<Products> MakeProducts(const CudaBlas& blas, uint64_t rows, uint64_t columns,
                                uint64_t tokens) const;
  void CopyTableEnd(device::CudaStream& stream, const std::byte* table, std::byte* scratch) const;
  void RunChunks(device::CudaStream& stream, const CudaHeadData& data, std::byte* scratch);
  void RunChunk(device::CudaStream& stream, Chunk& chunk, uint64_t first_row,
                const CudaHeadData& data, std::byte* scratch);
  // RunChunk's, of the chunk's rows, which `data` begins with.
  void Logits(device::CudaStream& stream, Chunk& chunk, const CudaHeadData& data,
              std::byte* scratch) const;
  void TableGradient(device::CudaStream& stream, Chunk& chunk, const CudaHeadData& data,
                     const std::byte* d_logits) const;
  void InputGradient(device::CudaStream& stream, Chunk& chunk, const CudaHeadData& data,
                     const std::byte* d_logits, std::byte* scratch) const;

  const HeadCall call_;
  const CudaHeadPlan plan_;
  Chunk chunk_;
  Chunk last_;  ///< rows that do not fill a chunk; empty if there are none
};

}  // namespace penstock::kernels
