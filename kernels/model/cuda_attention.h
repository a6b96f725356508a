// Causal attention of the CUDA operators; see ModelOperators for what it computes.
//
// bf16 and fp16: cuDNN if requested, else our own fused kernels, in memory that grows only with the
// rows. Backward has two passes, neither of which adds to another block's results: statistics of
// the rows with the gradients of the queries, then the gradients of keys and values. fp32: cuBLASLt
// and a softmax, for as many heads at once as CudaAttentionPlan says.
//
// Threads: as the operators.
#pragma once

#include <memory>

#include "base/result.h"
#include "kernels/model/cuda_fused_attention.h"
#include "kernels/model/cuda_plan.h"
#include "kernels/model/cuda_product.h"
#include "kernels/model/cudnn_attention.h"
#include "kernels/model/operator_calls.h"

namespace penstock::kernels {

class CudaAttention {
 public:
  /// Creates attention for the current device. Errors: kUnavailable for heads without a kernel;
  /// those of cuBLASLt and the device.
  static Result<std::unique_ptr<CudaAttention>> Create(const CudaBlas& blas,
                                                       const AttentionCall& call);
  /// Creates attention by cuDNN. `statistics`: see CudnnAttention.
  static Result<std::unique_ptr<CudaAttention>> Create(CudnnLibrary& library,
                                                       const AttentionCall& call,
                                                       std::byte* statistics);

  void Forward(device::CudaStream& stream, const std::byte* qkv, std::byte* out,
               std::byte* scratch);
  void Backward(device::CudaStream& stream, const std::byte* qkv, const std::byte* out,
                const std::byte* d_out, std::byte* d_qkv, std::byte* scratch);

 private:
  /// fp32: for `heads` heads of one sequence. Scores are [heads, sequence, sequence].
  struct Products {
    std::unique_ptr<CudaProduct> scores;    ///< q kᵀ / √head size
    std::unique_ptr<CudaProduct> d_scores;  ///< d_out vᵀ
    std::unique_ptr<CudaProduct> out;       ///< p v
    std::unique_ptr<CudaProduct> d_query;   ///< d_scores k
    std::unique_ptr<CudaProduct> d_key;     ///< d_scoresᵀ q
    std::unique_ptr<CudaProduct> d_value;   ///< pᵀ d_out
  };

  explicit CudaAttention(const AttentionCall& call)
      : call_(call), plan_(call), head_size_(call.width / call.heads) {}
  Status MakeProducts(const CudaBlas& blas);
  CudaAttentionShape shape() const;
  bool fused() const { return call_.dtype != DType::kFloat32; }
  /// Calls f(offset of the first head in qkv, in out; in bytes) for each group of heads.
  template <typename F>
  void ForEachGroup(F f) const;
  CudaRowStatistics Statistics(std::byte* scratch) const;
  /// p = softmax(q kᵀ / √head size) of a group.
  void Probabilities(device::CudaStream& stream, const std::byte* query, std::byte* p);
  void BackwardOfGroup(device::CudaStream& stream, const std::byte* query, const std::byte* d_out,
                       std::byte* d_query, std::byte* scratch);

  const AttentionCall call_;
  const CudaAttentionPlan plan_;
  const uint64_t head_size_;
  uint64_t block_memory_ = 0;              ///< see CudaAttentionShape
  std::unique_ptr<CudnnAttention> cudnn_;  ///< null: own kernels
  Products products_;
};

}  // namespace penstock::kernels
