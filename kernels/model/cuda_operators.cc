#include "kernels/model/cuda_operators.h"

#include <cuda_runtime_api.h>

#include <limits>
#include <utility>

#include "base/check.h"
#include "device/cuda_status.h"
#include "kernels/model/cuda_column_sums.h"
#include "kernels/model/cuda_embedding.h"
#include "kernels/model/cuda_norm.h"
#include "kernels/model/cuda_plan.h"
#include "kernels/model/operator_factories.h"

namespace penstock::kernels {
namespace {

device::CudaStream& OnCuda(device::Stream& stream) {
  auto* const cuda = dynamic_cast<device::CudaStream*>(&stream);
  PENSTOCK_CHECK(cuda != nullptr, "operators of the CUDA device need one of its streams");
  return *cuda;
}

Status Validate(const OperatorOptions& options) {
  const OperatorShapes& shapes = options.shapes;
  PENSTOCK_CHECK(shapes.batch > 0 && shapes.sequence > 0 && shapes.width > 0 && shapes.heads > 0 &&
                 shapes.hidden > 0 && shapes.vocabulary > 0);
  if (shapes.width % shapes.heads != 0) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "operators: width {} is no multiple of {} heads; change one of them",
                     shapes.width, shapes.heads);
  }
  if (options.dtype == DType::kFloat16) {
    return MakeError(ErrorCode::kUnavailable,
                     "operators: the CUDA device computes in fp32 and bf16, not in {}; use bf16",
                     ToString(options.dtype));
  }
  if (shapes.batch * shapes.sequence > std::numeric_limits<int32_t>::max()) {
    return MakeError(
        ErrorCode::kInvalidArgument,
        "operators: a micro-batch of {} x {} tokens is too large; take fewer sequences",
        shapes.batch, shapes.sequence);
  }
  return {};
}

/// See Operators::arithmetic().
Result<std::string> Describe(const OperatorOptions& options, const CudaLinears& linears) {
  int device = 0;
  cudaDeviceProp properties{};
  PENSTOCK_TRY(device::CudaStatus(cudaGetDevice(&device), "asking for the current device"));
  PENSTOCK_TRY(device::CudaStatus(cudaGetDeviceProperties(&properties, device),
                                  "asking for the properties of device {}", device));
  return fmt::format("cuda {}.{}, {} multiprocessors, {}, cuBLASLt {} with {} in products",
                     properties.major, properties.minor, properties.multiProcessorCount,
                     ToString(options.dtype), cublasLtGetVersion(), linears.fused());
}

}  // namespace

Status CudaOperators::Build() {
  PENSTOCK_ASSIGN(blas_, CudaBlas::Create(scratch_.data()));
  PENSTOCK_ASSIGN(linears_, CudaLinears::Create(*blas_, options_));
  PENSTOCK_ASSIGN(attention_, CudaAttention::Create(*blas_, options_));
  PENSTOCK_ASSIGN(head_, CudaHead::Create(*blas_, options_));
  PENSTOCK_ASSIGN(arithmetic_, Describe(options_, *linears_));
  return {};
}

void CudaOperators::EmbeddingForward(device::Stream& stream, const int32_t* tokens,
                                     const std::byte* token_table, const std::byte* position_table,
                                     std::byte* out) {
  CudaEmbeddingForward(OnCuda(stream),
                       {.dtype = dtype_,
                        .rows = rows_,
                        .sequence = options_.shapes.sequence,
                        .width = options_.shapes.width,
                        .tokens = tokens},
                       token_table, position_table, out);
}

void CudaOperators::EmbeddingBackward(device::Stream& stream, const int32_t* tokens,
                                      const std::byte* d_out, float* d_token_table,
                                      float* d_position_table) {
  CudaEmbeddingBackward(OnCuda(stream),
                        {.dtype = dtype_,
                         .rows = rows_,
                         .sequence = options_.shapes.sequence,
                         .width = options_.shapes.width,
                         .tokens = tokens},
                        d_out, reinterpret_cast<int32_t*>(scratch()), d_token_table,
                        d_position_table);
}

void CudaOperators::LayerNormForward(device::Stream& stream, const std::byte* x,
                                     const std::byte* weight, const std::byte* bias, float eps,
                                     std::byte* out, float* mean, float* rstd) {
  const CudaNorm norm{dtype_, rows_, options_.shapes.width, x, weight};
  CudaNormForward(OnCuda(stream), norm, bias, eps, out, mean, rstd);
}

void CudaOperators::LayerNormBackward(device::Stream& stream, const std::byte* x,
                                      const std::byte* weight, const float* mean, const float* rstd,
                                      const std::byte* d_out, bool add_to_d_x, std::byte* d_x,
                                      float* d_weight, float* d_bias) {
  device::CudaStream& cuda = OnCuda(stream);
  const uint64_t width = options_.shapes.width;
  auto* const partial = reinterpret_cast<float*>(scratch());
  CudaAddNormWeightGradient(cuda, dtype_, rows_, width, d_out, x, mean, rstd, partial, d_weight);
  CudaAddBiasGradient(cuda, dtype_, rows_, width, d_out, partial, d_bias);
  CudaNormBackward(cuda, {dtype_, rows_, width, x, weight}, mean, rstd, d_out, add_to_d_x, d_x);
}

void CudaOperators::LinearForward(device::Stream& stream, const std::byte* x,
                                  const std::byte* weight, const std::byte* bias,
                                  const std::byte* residual, uint64_t k, uint64_t n,
                                  std::byte* out) {
  linears_->Find(k, n).Forward(OnCuda(stream),
                               {.a = x, .b = weight, .c = out, .bias = bias, .addend = residual});
}

void CudaOperators::LinearBackwardInput(device::Stream& stream, const std::byte* d_out,
                                        const std::byte* weight, uint64_t k, uint64_t n,
                                        std::byte* d_x) {
  linears_->Find(k, n).BackwardInput(OnCuda(stream), d_out, weight, d_x);
}

void CudaOperators::LinearBackwardWeight(device::Stream& stream, const std::byte* x,
                                         const std::byte* d_out, uint64_t k, uint64_t n,
                                         float* d_weight, float* d_bias) {
  linears_->Find(k, n).BackwardWeight(OnCuda(stream), x, d_out, d_weight, d_bias, scratch());
}

void CudaOperators::AttentionForward(device::Stream& stream, const std::byte* qkv, std::byte* out) {
  attention_->Forward(OnCuda(stream), qkv, out, scratch());
}

void CudaOperators::AttentionBackward(device::Stream& stream, const std::byte* qkv,
                                      const std::byte* d_out, std::byte* d_qkv) {
  attention_->Backward(OnCuda(stream), qkv, d_out, d_qkv, scratch());
}

void CudaOperators::LinearGeluForward(device::Stream& stream, const std::byte* x,
                                      const std::byte* weight, const std::byte* bias,
                                      std::byte* pre, std::byte* out) {
  linears_->ForwardGelu(OnCuda(stream), x, weight, bias, pre, out);
}

void CudaOperators::LinearGeluBackwardInput(device::Stream& stream, const std::byte* d_out,
                                            const std::byte* weight, const std::byte* pre,
                                            std::byte* d_pre) {
  linears_->BackwardInputGelu(OnCuda(stream), d_out, weight, pre, d_pre);
}

void CudaOperators::HeadForwardBackward(device::Stream& stream, const std::byte* x,
                                        const std::byte* table, const int32_t* targets,
                                        float gradient_scale, double* loss_sum, std::byte* d_x,
                                        float* d_table) {
  PENSTOCK_CHECK((d_x == nullptr) == (d_table == nullptr));
  head_->Run(OnCuda(stream),
             {.x = x,
              .table = table,
              .targets = targets,
              .gradient_scale = gradient_scale,
              .loss_sum = loss_sum,
              .d_x = d_x,
              .d_table = d_table},
             scratch());
}

Result<Bytes> CudaOperatorScratch(const OperatorOptions& options) {
  PENSTOCK_TRY(Validate(options));
  return CudaPlan(options).scratch;
}

Result<std::unique_ptr<Operators>> CreateCudaOperators(device::Device& device,
                                                       const OperatorOptions& options) {
  PENSTOCK_ASSIGN(const Bytes size, CudaOperatorScratch(options));
  PENSTOCK_ASSIGN(device::DeviceBuffer scratch, device.Allocate(size, "scratch of the operators"));
  auto operators = std::make_unique<CudaOperators>(options, std::move(scratch));
  PENSTOCK_TRY(operators->Build());
  return std::unique_ptr<Operators>(std::move(operators));
}

}  // namespace penstock::kernels
