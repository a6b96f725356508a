// Causal attention by cuDNN: forward in one call, backward in groups of heads (CudnnAttentionPlan).
//
// Backward reads the output of forward and its statistics of rows, which are kept between the two.
// Which heads are in a group changes no bit of another head.
//
// Threads: as the operators.
#pragma once

#include <memory>

#include "base/result.h"
#include "device/device.h"
#include "kernels/model/cuda_plan.h"
#include "kernels/model/cudnn_library.h"
#include "kernels/model/operator_calls.h"

namespace penstock::kernels {

class CudnnAttention {
 public:
  /// `statistics`: as large as the plan says; kept. Errors: kUnavailable if cuDNN has no kernel, or
  /// needs more memory than was planned.
  static Result<std::unique_ptr<CudnnAttention>> Create(CudnnLibrary& library,
                                                        const AttentionCall& call,
                                                        const CudnnAttentionPlan& plan,
                                                        std::byte* statistics);

  void Forward(device::CudaStream& stream, const std::byte* qkv, std::byte* out,
               std::byte* workspace);
  /// Computes the gradient of the latest Forward.
  void Backward(device::CudaStream& stream, const std::byte* qkv, const std::byte* out,
                const std::byte* d_out, std::byte* d_qkv, std::byte* workspace);

 private:
  CudnnAttention(const AttentionCall& call, const CudnnAttentionPlan& plan, std::byte* statistics)
      : call_(call), plan_(plan), statistics_(statistics) {}

  const AttentionCall call_;
  const CudnnAttentionPlan plan_;
  std::byte* const statistics_;
  std::unique_ptr<CudnnAttentionGraph> forward_;
  std::unique_ptr<CudnnAttentionGraph> backward_;  ///< graph of a group
  /// What the statistics are of.
  const std::byte* qkv_ = nullptr;
  const std::byte* out_ = nullptr;
};

}  // namespace penstock::kernels
