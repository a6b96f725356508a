// The operators on the CUDA device: cuBLASLt for matrix products, kernels of our own for the rest.
//
// Every function checks that the stream is a CUDA device's and enqueues; what fails is the stream's
// failure. No result depends on an address, on what else runs, or on the order of atomics. Rows
// that are multiples of 16 bytes begin at such addresses, as they do in buffers of the device.
#pragma once

#include <memory>
#include <string>

#include "device/device.h"
#include "kernels/model/cuda_attention.h"
#include "kernels/model/cuda_head.h"
#include "kernels/model/cuda_linear.h"
#include "kernels/model/cuda_product.h"
#include "kernels/model/operators.h"

namespace penstock::kernels {

class CudaOperators final : public Operators {
 public:
  CudaOperators(const OperatorOptions& options, device::DeviceBuffer scratch)
      : options_(options),
        dtype_(options.dtype),
        rows_(options.shapes.batch * options.shapes.sequence),
        scratch_(std::move(scratch)) {}
  /// The rest of construction. Errors: of cuBLASLt.
  Status Build();

  void EmbeddingForward(device::Stream& stream, const int32_t* tokens, const std::byte* token_table,
                        const std::byte* position_table, std::byte* out) override;
  void EmbeddingBackward(device::Stream& stream, const int32_t* tokens, const std::byte* d_out,
                         float* d_token_table, float* d_position_table) override;
  void LayerNormForward(device::Stream& stream, const std::byte* x, const std::byte* weight,
                        const std::byte* bias, float eps, std::byte* out, float* mean,
                        float* rstd) override;
  void LayerNormBackward(device::Stream& stream, const std::byte* x, const std::byte* weight,
                         const float* mean, const float* rstd, const std::byte* d_out,
                         bool add_to_d_x, std::byte* d_x, float* d_weight, float* d_bias) override;
  void LinearForward(device::Stream& stream, const std::byte* x, const std::byte* weight,
                     const std::byte* bias, const std::byte* residual, uint64_t k, uint64_t n,
                     std::byte* out) override;
  void LinearBackwardInput(device::Stream& stream, const std::byte* d_out, const std::byte* weight,
                           uint64_t k, uint64_t n, std::byte* d_x) override;
  void LinearBackwardWeight(device::Stream& stream, const std::byte* x, const std::byte* d_out,
                            uint64_t k, uint64_t n, float* d_weight, float* d_bias) override;
  void AttentionForward(device::Stream& stream, const std::byte* qkv, std::byte* out) override;
  void AttentionBackward(device::Stream& stream, const std::byte* qkv, const std::byte* d_out,
                         std::byte* d_qkv) override;
  void LinearGeluForward(device::Stream& stream, const std::byte* x, const std::byte* weight,
                         const std::byte* bias, std::byte* pre, std::byte* out) override;
  void LinearGeluBackwardInput(device::Stream& stream, const std::byte* d_out,
                               const std::byte* weight, const std::byte* pre,
                               std::byte* d_pre) override;
  void HeadForwardBackward(device::Stream& stream, const std::byte* x, const std::byte* table,
                           const int32_t* targets, float gradient_scale, double* loss_sum,
                           std::byte* d_x, float* d_table) override;
  std::string arithmetic() const override { return arithmetic_; }
  Bytes scratch_bytes() const override { return scratch_.size(); }

 private:
  /// What one operator at a time needs.
  std::byte* scratch() const { return scratch_.data() + kCudaWorkspace.value; }

  const OperatorOptions options_;
  const DType dtype_;
  const uint64_t rows_;
  device::DeviceBuffer scratch_;
  std::string arithmetic_;
  std::unique_ptr<CudaBlas> blas_;
  std::unique_ptr<CudaLinears> linears_;
  std::unique_ptr<CudaAttention> attention_;
  std::unique_ptr<CudaHead> head_;
};

}  // namespace penstock::kernels
