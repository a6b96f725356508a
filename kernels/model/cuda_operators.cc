#include "kernels/model/cuda_operators.h"

#include <cuda_runtime_api.h>

#include <limits>
#include <utility>

#include "base/check.h"
#include "device/cuda_status.h"
#include "kernels/model/call_shapes.h"
#include "kernels/model/cuda_column_sums.h"
#include "kernels/model/cuda_embedding.h"
#include "kernels/model/cuda_norm.h"
#include "kernels/model/cuda_plan.h"
#include "kernels/model/cuda_search.h"
#include "kernels/model/operator_factories.h"

namespace penstock::kernels {
namespace {

device::CudaStream& OnCuda(device::Stream& stream) {
  auto* const cuda = dynamic_cast<device::CudaStream*>(&stream);
  PENSTOCK_CHECK(cuda != nullptr, "operators of the CUDA device need one of its streams");
  return *cuda;
}

CudaEmbedding CudaEmbeddingFor(const EmbeddingCall& call, const TokenView& tokens,
                               bool adds_once = false) {
  return {.dtype = call.dtype,
          .rows = call.rows,
          .sequence = tokens.sequence,
          .width = call.width,
          .tokens = tokens.data,
          .adds_once = adds_once};
}

/// Checks a call of attention by cuDNN.
Status ValidateAttention(const AttentionCall& call) {
  const uint64_t head_size = call.width / call.heads;
  if (call.dtype == DType::kFloat32) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "operators: attention by cuDNN needs bf16 or fp16; enable one of them, {}",
                     kWithoutCudnn);
  }
  if (head_size % 8 == 0 && head_size <= 256) return {};
  return MakeError(ErrorCode::kInvalidArgument,
                   "operators: attention by cuDNN takes heads of a multiple of 8 elements, at most "
                   "256, not {}; change width or heads, {}",
                   head_size, kWithoutCudnn);
}

Status Validate(const OperatorOptions& options) {
  PENSTOCK_TRY(CheckCalls(options.calls));
  for (const OperatorCall& call : options.calls) {
    const auto* const attention = std::get_if<AttentionCall>(&call);
    if (attention != nullptr && options.attention == AttentionKernel::kCudnn) {
      PENSTOCK_TRY(ValidateAttention(*attention));
    }
    if (RowsOf(call) <= std::numeric_limits<int32_t>::max()) continue;
    return MakeError(ErrorCode::kInvalidArgument,
                     "operators: a micro-batch of {} tokens is too large; take fewer sequences",
                     RowsOf(call));
  }
  return {};
}

template <typename Call, typename Part>
Part& Find(const std::map<Call, std::unique_ptr<Part>>& parts, const Call& call) {
  const auto found = parts.find(call);
  PENSTOCK_CHECK(found != parts.end(), "operators: a call whose shapes were not declared");
  return *found->second;
}

CudaLinear& FindLinear(const std::map<LinearCall, std::unique_ptr<CudaLinear>>& linears,
                       const LinearCall& call) {
  const auto found = linears.find(call);
  PENSTOCK_CHECK(found != linears.end(), "{} x {} is no map of the layers that were declared",
                 call.k, call.n);
  return *found->second;
}

}  // namespace

Status CudaOperators::Build() {
  PENSTOCK_ASSIGN(blas_, CudaBlas::Create(scratch_.data()));
  for (const OperatorCall& call : options_.calls) {
    PENSTOCK_TRY(std::visit([this](const auto& of_kind) { return Make(of_kind); }, call));
  }
  PENSTOCK_ASSIGN(arithmetic_, Describe());
  return {};
}

Status CudaOperators::Make(const EmbeddingCall& call) {
  embeddings_.insert(call);
  return {};
}

Status CudaOperators::Make(const LayerNormCall& call) {
  norms_.insert(call);
  return {};
}

Status CudaOperators::Make(const LinearCall& call) {
  if (linears_.contains(call)) return {};
  PENSTOCK_ASSIGN(linears_[call], CudaLinear::Create(*blas_, call, options_.weight_unit));
  return {};
}

Status CudaOperators::Make(const LinearGeluCall& call) {
  if (gelus_.contains(call)) return {};
  PENSTOCK_TRY(Make(InwardOf(call)));
  PENSTOCK_TRY(Make(OutwardOf(call)));
  PENSTOCK_ASSIGN(gelus_[call], CudaLinearGelu::Create(*blas_, call, options_.weight_unit,
                                                       FindLinear(linears_, InwardOf(call)),
                                                       FindLinear(linears_, OutwardOf(call))));
  return {};
}

Status CudaOperators::Make(const AttentionCall& call) {
  if (attentions_.contains(call)) return {};
  if (options_.attention == AttentionKernel::kOwn) {
    PENSTOCK_ASSIGN(attentions_[call], CudaAttention::Create(*blas_, call));
    return {};
  }
  if (cudnn_ == nullptr) {
    PENSTOCK_ASSIGN(cudnn_, LoadCudnn());
  }
  PENSTOCK_ASSIGN(attentions_[call],
                  CudaAttention::Create(*cudnn_, call, Keep(CudnnAttentionPlan(call).statistics)));
  return {};
}

std::byte* CudaOperators::Keep(Bytes size) {
  const Bytes at = kCudaWorkspace + plan_.shared + kept_;
  kept_ += size;
  PENSTOCK_CHECK(kept_ <= plan_.kept);
  return scratch_.data() + at.value;
}

Status CudaOperators::Make(const HeadCall& call) {
  if (heads_.contains(call)) return {};
  PENSTOCK_ASSIGN(heads_[call], CudaHead::Create(*blas_, call, options_.adds_once));
  return {};
}

/// See ModelOperators::arithmetic().
Result<std::string> CudaOperators::Describe() const {
  int device = 0;
  cudaDeviceProp properties{};
  PENSTOCK_TRY(device::CudaStatus(cudaGetDevice(&device), "asking for the current device"));
  PENSTOCK_TRY(device::CudaStatus(cudaGetDeviceProperties(&properties, device),
                                  "asking for the properties of device {}", device));
  std::string fused;
  for (const auto& [call, gelu] : gelus_) {
    if (fused.find(gelu->fused()) == std::string::npos) {
      fused += (fused.empty() ? "" : " or ") + gelu->fused();
    }
  }
  return fmt::format("cuda {}.{}, {} multiprocessors, {}, {}cuBLASLt {} with {} in products",
                     properties.major, properties.minor, properties.multiProcessorCount,
                     DTypesOf(options_.calls, [](DType dtype) { return ToString(dtype); }),
                     DescribeAttention(), cublasLtGetVersion(), fused.empty() ? "nothing" : fused);
}

std::string CudaOperators::DescribeAttention() const {
  if (attentions_.empty()) return "";
  return cudnn_ == nullptr ? "own attention, " : fmt::format("attention by {}, ", cudnn_->name());
}

void CudaOperators::EmbeddingForward(device::Stream& stream, const TokenView& tokens,
                                     const ConstTensorView& token_table,
                                     const ConstTensorView& position_table, const TensorView& out) {
  const EmbeddingCall call = EmbeddingOf(tokens, out, out.dtype, token_table, position_table);
  CudaEmbeddingForward(OnCuda(stream), CudaEmbeddingFor(call, tokens), token_table.data,
                       position_table.data, out.data);
}

void CudaOperators::EmbeddingBackward(device::Stream& stream, const TokenView& tokens,
                                      const ConstTensorView& d_out, bool adds_once,
                                      const TensorView& d_token_table,
                                      const TensorView& d_position_table) {
  const EmbeddingCall call =
      EmbeddingOf(tokens, d_out, DType::kFloat32, d_token_table, d_position_table);
  PENSTOCK_CHECK(embeddings_.contains(call), "operators: an embedding that was not declared");
  CudaEmbeddingBackward(OnCuda(stream), CudaEmbeddingFor(call, tokens, adds_once), d_out.data,
                        reinterpret_cast<int32_t*>(scratch()), d_token_table.floats(),
                        d_position_table.floats());
}

void CudaOperators::LayerNormForward(device::Stream& stream, const ConstTensorView& x,
                                     const ConstTensorView& weight, const ConstTensorView& bias,
                                     float eps, const TensorView& out, const TensorView& mean,
                                     const TensorView& rstd, float* largest) {
  const LayerNormCall call = LayerNormOf(x, out, x.dtype, weight, bias, mean, rstd);
  CudaNormForward(OnCuda(stream), {call.dtype, call.rows, call.width, x.data, weight.data},
                  bias.data, eps, out.data, mean.floats(), rstd.floats(), largest);
}

void CudaOperators::LayerNormBackward(device::Stream& stream, const ConstTensorView& x,
                                      const ConstTensorView& weight, const ConstTensorView& mean,
                                      const ConstTensorView& rstd, const ConstTensorView& d_out,
                                      bool add_to_d_x, const TensorView& d_x,
                                      const TensorView& d_weight, const TensorView& d_bias) {
  const LayerNormCall call = LayerNormOf(x, d_out, DType::kFloat32, d_weight, d_bias, mean, rstd);
  CheckVector(weight, call.dtype, call.width);
  CheckMatrix(d_x, call.dtype, call.rows, call.width);
  PENSTOCK_CHECK(norms_.contains(call), "operators: a norm that was not declared");
  device::CudaStream& cuda = OnCuda(stream);
  auto* const partial = reinterpret_cast<float*>(scratch());
  CudaAddNormWeightGradient(cuda, call.dtype, call.rows, call.width, d_out.data, x.data,
                            mean.floats(), rstd.floats(), partial, d_weight.floats());
  CudaAddBiasGradient(cuda, call.dtype, call.rows, call.width, d_out.data, partial,
                      d_bias.floats());
  CudaNormBackward(cuda, {call.dtype, call.rows, call.width, x.data, weight.data}, mean.floats(),
                   rstd.floats(), d_out.data, add_to_d_x, d_x.data);
}

void CudaOperators::LinearForward(device::Stream& stream, const ConstTensorView& x,
                                  const ConstTensorView& weight, const ConstTensorView& bias,
                                  const ConstTensorView& residual, const TensorView& out) {
  const LinearCall call = LinearOf(x, x.dtype, weight, out);
  CheckVector(bias, call.dtype, call.n);
  CheckResidual(call, residual, out);
  FindLinear(linears_, call)
      .Forward(OnCuda(stream), {.a = x.data,
                                .b = weight.data,
                                .c = out.data,
                                .bias = bias.data,
                                .addend = residual.data});
}

void CudaOperators::LinearBackwardInput(device::Stream& stream, const ConstTensorView& d_out,
                                        const ConstTensorView& weight, const TensorView& d_x) {
  FindLinear(linears_, LinearOf(d_x, d_x.dtype, weight, d_out))
      .BackwardInput(OnCuda(stream), d_out.data, weight.data, d_x.data);
}

void CudaOperators::LinearBackwardWeight(device::Stream& stream, const ConstTensorView& x,
                                         const ConstTensorView& d_out, const TensorView& d_weight,
                                         const TensorView& d_bias) {
  const LinearCall call = LinearOf(x, DType::kFloat32, d_weight, d_out);
  CheckVector(d_bias, DType::kFloat32, call.n);
  FindLinear(linears_, call)
      .BackwardWeight(OnCuda(stream), x.data, d_out.data, d_weight.floats(), d_bias.floats(),
                      scratch());
}

void CudaOperators::AttentionForward(device::Stream& stream, uint64_t heads,
                                     const ConstTensorView& qkv, const TensorView& out) {
  Find(attentions_, AttentionOf(heads, qkv, out))
      .Forward(OnCuda(stream), qkv.data, out.data, scratch());
}

void CudaOperators::AttentionBackward(device::Stream& stream, uint64_t heads,
                                      const ConstTensorView& qkv, const ConstTensorView& out,
                                      const ConstTensorView& d_out, const TensorView& d_qkv) {
  const AttentionCall call = AttentionOf(heads, qkv, d_out);
  CheckMatrix(out, call.dtype, call.batch * call.sequence, call.width);
  CheckMatrix(d_qkv, call.dtype, call.batch * call.sequence, 3 * call.width);
  Find(attentions_, call)
      .Backward(OnCuda(stream), qkv.data, out.data, d_out.data, d_qkv.data, scratch());
}

void CudaOperators::LinearGeluForward(device::Stream& stream, const ConstTensorView& x,
                                      const ConstTensorView& weight, const ConstTensorView& bias,
                                      const TensorView& pre, const TensorView& out) {
  const LinearGeluCall call = LinearGeluOf(x, pre, out);
  CheckMatrix(weight, call.dtype, call.width, call.hidden);
  CheckVector(bias, call.dtype, call.hidden);
  Find(gelus_, call).Forward(OnCuda(stream), x.data, weight.data, bias.data, pre.data, out.data);
}

void CudaOperators::LinearGeluBackwardInput(device::Stream& stream, const ConstTensorView& d_out,
                                            const ConstTensorView& weight,
                                            const ConstTensorView& pre, const TensorView& d_pre) {
  const LinearGeluCall call = LinearGeluOf(d_out, pre, d_pre);
  CheckMatrix(weight, call.dtype, call.hidden, call.width);
  Find(gelus_, call).BackwardInput(OnCuda(stream), d_out.data, weight.data, pre.data, d_pre.data);
}

void CudaOperators::HeadForwardBackward(device::Stream& stream, const ConstTensorView& x,
                                        const ConstTensorView& table, const TokenView& targets,
                                        float gradient_scale, double* loss_sum,
                                        const TensorView& d_x, const TensorView& d_table) {
  Find(heads_, HeadOf(x, table, targets, d_x, d_table))
      .Run(OnCuda(stream),
           {.x = x.data,
            .table = table.data,
            .targets = targets.data,
            .gradient_scale = gradient_scale,
            .loss_sum = loss_sum,
            .d_x = d_x.data,
            .d_table = d_table.floats()},
           scratch());
}

void CudaOperators::FindBeyond(device::Stream& stream, const ConstTensorView& x, float limit,
                               uint64_t base, uint64_t* first) {
  CudaFindBeyond(OnCuda(stream), x, limit, base, first);
}

Result<Bytes> CudaOperatorScratch(const OperatorOptions& options) {
  PENSTOCK_TRY(Validate(options));
  return CudaScratchPlan(options).all;
}

Result<std::unique_ptr<ModelOperators>> CreateCudaOperators(device::Device& device,
                                                            const OperatorOptions& options) {
  PENSTOCK_ASSIGN(const Bytes size, CudaOperatorScratch(options));
  PENSTOCK_ASSIGN(device::DeviceBuffer scratch, device.Allocate(size, "scratch of the operators"));
  auto operators = std::make_unique<CudaOperators>(options, std::move(scratch));
  PENSTOCK_TRY(operators->Build());
  return std::unique_ptr<ModelOperators>(std::move(operators));
}

}  // namespace penstock::kernels
