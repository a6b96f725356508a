// The operators on the CPU device: oneDNN for matrix products, our own loops for the rest.
//
// Every function checks that the stream is the CPU device's, captures its pointers and returns; the
// work runs on the stream's thread and on OpenMP's pool of that thread, with the number of threads
// that the options state. All operators share one scratch buffer, so that at most one may run at a
// time.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "base/mapping.h"
#include "device/device.h"
#include "kernels/model/cpu_attention.h"
#include "kernels/model/cpu_embedding.h"
#include "kernels/model/cpu_head.h"
#include "kernels/model/cpu_linear.h"
#include "kernels/model/cpu_matmul.h"
#include "kernels/model/model_operators.h"

namespace penstock::kernels {

/// Everything that exists before scratch is allocated: made to plan, and to run.
struct CpuOperatorParts {
  CpuOperatorParts(const OperatorOptions& options, Bf16Arithmetic arithmetic);

  std::map<EmbeddingCall, EmbeddingGradient> embeddings;
  std::map<LinearCall, Linear> linears;
  std::map<AttentionCall, Attention> attentions;
  std::map<HeadCall, Head> heads;
  std::set<LayerNormCall> norms;
  Bytes scratch;  ///< max over all calls
};

/// Runs `kernel` on `threads` threads of OpenMP's. oneDNN's "out of memory" comes out as
/// std::bad_alloc, by which the stream knows what it is.
void RunKernel(int threads, const std::function<void()>& kernel);

class CpuOperators final : public ModelOperators {
 public:
  CpuOperators(const OperatorOptions& options, Bf16Arithmetic arithmetic,
               std::unique_ptr<CpuOperatorParts> parts, device::DeviceBuffer scratch, Mapping room);

  void EmbeddingForward(device::Stream& stream, const TokenView& tokens,
                        const ConstTensorView& token_table, const ConstTensorView& position_table,
                        const TensorView& out) override;
  void EmbeddingBackward(device::Stream& stream, const TokenView& tokens,
                         const ConstTensorView& d_out, bool adds_once,
                         const TensorView& d_token_table,
                         const TensorView& d_position_table) override;
  void LayerNormForward(device::Stream& stream, const ConstTensorView& x,
                        const ConstTensorView& weight, const ConstTensorView& bias, float eps,
                        const TensorView& out, const TensorView& mean, const TensorView& rstd,
                        float* largest) override;
  void LayerNormBackward(device::Stream& stream, const ConstTensorView& x,
                         const ConstTensorView& weight, const ConstTensorView& mean,
                         const ConstTensorView& rstd, const ConstTensorView& d_out, bool add_to_d_x,
                         const TensorView& d_x, const TensorView& d_weight,
                         const TensorView& d_bias) override;
  void LinearForward(device::Stream& stream, const ConstTensorView& x,
                     const ConstTensorView& weight, const ConstTensorView& bias,
                     const ConstTensorView& residual, const TensorView& out) override;
  void LinearBackwardInput(device::Stream& stream, const ConstTensorView& d_out,
                           const ConstTensorView& weight, const TensorView& d_x) override;
  void LinearBackwardWeight(device::Stream& stream, const ConstTensorView& x,
                            const ConstTensorView& d_out, const TensorView& d_weight,
                            const TensorView& d_bias) override;
  void AttentionForward(device::Stream& stream, uint64_t heads, const ConstTensorView& qkv,
                        const TensorView& out) override;
  void AttentionBackward(device::Stream& stream, uint64_t heads, const ConstTensorView& qkv,
                         const ConstTensorView& out, const ConstTensorView& d_out,
                         const TensorView& d_qkv) override;
  void LinearGeluForward(device::Stream& stream, const ConstTensorView& x,
                         const ConstTensorView& weight, const ConstTensorView& bias,
                         const TensorView& pre, const TensorView& out) override;
  void LinearGeluBackwardInput(device::Stream& stream, const ConstTensorView& d_out,
                               const ConstTensorView& weight, const ConstTensorView& pre,
                               const TensorView& d_pre) override;
  void HeadForwardBackward(device::Stream& stream, const ConstTensorView& x,
                           const ConstTensorView& table, const TokenView& targets,
                           float gradient_scale, double* loss_sum, const TensorView& d_x,
                           const TensorView& d_table) override;
  void FindBeyond(device::Stream& stream, const ConstTensorView& x, float limit, uint64_t base,
                  uint64_t* first) override;
  std::string arithmetic() const override { return arithmetic_; }
  Bytes scratch_bytes() const override { return scratch_.size(); }

 private:
  void Launch(device::Stream& stream, std::function<void()> kernel);

  const int threads_;
  const std::string arithmetic_;
  std::unique_ptr<CpuOperatorParts> parts_;
  device::DeviceBuffer scratch_;
  /// Keeps others from taking the address space that the first kernels need; gone with them.
  Mapping room_;
};

/// Like OperatorScratch and CreateModelOperators for the CPU device, with the given bf16
/// arithmetic.
Result<Bytes> CpuOperatorScratch(const OperatorOptions& options, Bf16Arithmetic arithmetic);
Result<std::unique_ptr<ModelOperators>> CreateCpuOperators(device::Device& device,
                                                           const OperatorOptions& options,
                                                           Bf16Arithmetic arithmetic);

}  // namespace penstock::kernels
