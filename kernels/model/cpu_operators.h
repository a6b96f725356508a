// The operators on the CPU device: oneDNN for matrix products, loops of our own for the rest.
//
// Every function checks that the stream is the CPU device's, captures its pointers and returns; the
// work runs on the stream's thread and on OpenMP's pool of that thread, with the number of threads
// that the options state. All operators share one scratch buffer, so that at most one may run at a
// time.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/mapping.h"
#include "device/device.h"
#include "kernels/model/cpu_attention.h"
#include "kernels/model/cpu_head.h"
#include "kernels/model/cpu_linear.h"
#include "kernels/model/cpu_matmul.h"
#include "kernels/model/operators.h"

namespace penstock::kernels {

/// Everything that exists before scratch is allocated: made to plan, and to run.
struct CpuOperatorParts {
  CpuOperatorParts(const OperatorOptions& options, Bf16Arithmetic arithmetic);

  Bytes scratch() const;

  Linears linears;
  Attention attention;
  Head head;
  Bytes layer_norm_scratch;
};

/// Runs `kernel` on `threads` threads of OpenMP's. oneDNN's "out of memory" comes out as
/// std::bad_alloc, by which the stream knows what it is.
void RunKernel(int threads, const std::function<void()>& kernel);

class CpuOperators final : public Operators {
 public:
  CpuOperators(const OperatorOptions& options, Bf16Arithmetic arithmetic,
               std::unique_ptr<CpuOperatorParts> parts, device::DeviceBuffer scratch, Mapping room);

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
  void Launch(device::Stream& stream, std::function<void()> kernel);

  const OperatorOptions options_;
  const DType dtype_;
  const uint64_t rows_;
  const int threads_;
  const std::string arithmetic_;
  std::unique_ptr<CpuOperatorParts> parts_;
  device::DeviceBuffer scratch_;
  /// Keeps others from taking the address space that the first kernels need; gone with them.
  Mapping room_;
};

/// As OperatorScratch and CreateOperators for the CPU device, with the way of multiplying bf16
/// chosen.
Result<Bytes> CpuOperatorScratch(const OperatorOptions& options, Bf16Arithmetic arithmetic);
Result<std::unique_ptr<Operators>> CreateCpuOperators(device::Device& device,
                                                      const OperatorOptions& options,
                                                      Bf16Arithmetic arithmetic);

}  // namespace penstock::kernels
