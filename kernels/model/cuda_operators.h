// The operators on the CUDA device: cuBLASLt for matrix products, cuDNN for attention if requested,
// our own kernels for the rest.
//
// Every function checks that the stream is a CUDA device's and enqueues; errors become the stream's
// failure. No result depends on an address, on concurrent work, or on the order of atomics. Rows
// that are multiples of 16 bytes begin at such addresses, as they do in buffers of the device.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "device/device.h"
#include "kernels/model/cuda_attention.h"
#include "kernels/model/cuda_head.h"
#include "kernels/model/cuda_linear.h"
#include "kernels/model/cuda_plan.h"
#include "kernels/model/cuda_product.h"
#include "kernels/model/model_operators.h"

namespace penstock::kernels {

class CudaOperators final : public ModelOperators {
 public:
  CudaOperators(OperatorOptions options, device::DeviceBuffer scratch)
      : options_(std::move(options)), scratch_(std::move(scratch)) {}
  /// The rest of construction. Errors: of cuBLASLt and cuDNN.
  Status Build();

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
  /// What one operator at a time needs.
  std::byte* scratch() const { return scratch_.data() + kCudaWorkspace.value; }

  // Build's, for a call of each kind.
  Status Make(const EmbeddingCall& call);
  Status Make(const LayerNormCall& call);
  Status Make(const LinearCall& call);
  Status Make(const LinearGeluCall& call);
  Status Make(const AttentionCall& call);
  Status Make(const HeadCall& call);
  /// Takes memory for what an attention keeps from forward to backward.
  std::byte* Keep(Bytes size);
  Result<std::string> Describe() const;
  std::string DescribeAttention() const;

  const OperatorOptions options_;
  const CudaScratchPlan plan_{options_};
  device::DeviceBuffer scratch_;
  std::string arithmetic_;
  std::unique_ptr<CudaBlas> blas_;
  std::unique_ptr<CudnnLibrary> cudnn_;  ///< set if attention uses it
  Bytes kept_;                           ///< bytes kept by the attentions made so far
  std::set<EmbeddingCall> embeddings_;
  std::set<LayerNormCall> norms_;
  std::map<LinearCall, std::unique_ptr<CudaLinear>> linears_;
  std::map<LinearGeluCall, std::unique_ptr<CudaLinearGelu>> gelus_;
  std::map<AttentionCall, std::unique_ptr<CudaAttention>> attentions_;
  std::map<HeadCall, std::unique_ptr<CudaHead>> heads_;
};

}  // namespace penstock::kernels
