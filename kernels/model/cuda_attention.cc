#include "kernels/model/cuda_attention.h"

#include <cuda_runtime_api.h>

#include <cmath>

#include "device/cuda_status.h"
#include "kernels/model/cuda_softmax.h"

namespace penstock::kernels {
namespace {

Result<uint64_t> SharedMemoryOfBlock() {
  int device = 0;
  int bytes = 0;
  PENSTOCK_TRY(device::CudaStatus(cudaGetDevice(&device), "asking for the current device"));
  PENSTOCK_TRY(device::CudaStatus(
      cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
      "asking for the shared memory of a block on device {}", device));
  return static_cast<uint64_t>(bytes);
}

}  // namespace

Result<std::unique_ptr<CudaAttention>> CudaAttention::Create(const CudaBlas& blas,
                                                             const AttentionCall& call) {
  std::unique_ptr<CudaAttention> attention(new CudaAttention(call));
  if (attention->fused()) {
    if (attention->head_size_ > kMaxFusedHead) {
      return MakeError(ErrorCode::kUnavailable,
                       "operators: attention in {} on the CUDA device takes heads of at most {} "
                       "elements, not {}; use fp32 or --device cpu",
                       ToString(call.dtype), kMaxFusedHead, attention->head_size_);
    }
    PENSTOCK_ASSIGN(attention->block_memory_, SharedMemoryOfBlock());
    return attention;
  }
  PENSTOCK_TRY(attention->MakeProducts(blas));
  return attention;
}

Result<std::unique_ptr<CudaAttention>> CudaAttention::Create(CudnnLibrary& library,
                                                             const AttentionCall& call,
                                                             std::byte* statistics) {
  std::unique_ptr<CudaAttention> attention(new CudaAttention(call));
  PENSTOCK_ASSIGN(attention->cudnn_,
                  CudnnAttention::Create(library, call, CudnnAttentionPlan(call), statistics));
  return attention;
}

Status CudaAttention::MakeProducts(const CudaBlas& blas) {
  const uint64_t n = call_.sequence;
  const CudaOperand in_qkv{.stride = 3 * call_.width, .batch_stride = head_size_};
  const CudaOperand in_out{.stride = call_.width, .batch_stride = head_size_};
  const CudaOperand scores{.stride = n, .batch_stride = n * n};
  const auto transposed = [](CudaOperand operand) {
    operand.transposed = true;
    return operand;
  };
  const auto make = [&](CudaProductSpec spec) {
    spec.m = n;
    spec.batch = plan_.heads;
    return CudaProduct::Create(blas, spec);
  };
  const auto make_scores = [&](const CudaOperand& left, float alpha) {
    return make(
        {.n = n, .k = head_size_, .a = left, .b = transposed(in_qkv), .c = scores, .alpha = alpha});
  };
  const auto from_scores = [&](const CudaOperand& left, const CudaOperand& right,
                               const CudaOperand& out) {
    return make({.n = head_size_, .k = n, .a = left, .b = right, .c = out});
  };
  const float scale = 1 / std::sqrt(static_cast<float>(head_size_));
  PENSTOCK_ASSIGN(products_.scores, make_scores(in_qkv, scale));
  PENSTOCK_ASSIGN(products_.d_scores, make_scores(in_out, 1));
  PENSTOCK_ASSIGN(products_.out, from_scores(scores, in_qkv, in_out));
  PENSTOCK_ASSIGN(products_.d_query, from_scores(scores, in_qkv, in_qkv));
  PENSTOCK_ASSIGN(products_.d_key, from_scores(transposed(scores), in_qkv, in_qkv));
  PENSTOCK_ASSIGN(products_.d_value, from_scores(transposed(scores), in_out, in_qkv));
  return {};
}

CudaAttentionShape CudaAttention::shape() const {
  return {.dtype = call_.dtype,
          .tasks = call_.batch * call_.heads,
          .sequence = call_.sequence,
          .heads = call_.heads,
          .head_size = head_size_,
          .block_memory = block_memory_};
}

CudaRowStatistics CudaAttention::Statistics(std::byte* scratch) const {
  return {.log_sums = reinterpret_cast<float*>(scratch),
          .deltas = reinterpret_cast<float*>(scratch + plan_.second)};
}

template <typename F>
void CudaAttention::ForEachGroup(F f) const {
  for (uint64_t batch = 0; batch < call_.batch; ++batch) {
    for (uint64_t head = 0; head < call_.heads; head += plan_.heads) {
      const uint64_t row = batch * call_.sequence * call_.width;
      f((3 * row + head * head_size_) * sizeof(float), (row + head * head_size_) * sizeof(float));
    }
  }
}

void CudaAttention::Forward(device::CudaStream& stream, const std::byte* qkv, std::byte* out,
                            std::byte* scratch) {
  if (cudnn_ != nullptr) {
    cudnn_->Forward(stream, qkv, out, scratch);
    return;
  }
  if (fused()) {
    CudaFusedAttentionForward(stream, shape(), qkv, out);
    return;
  }
  const uint64_t part = call_.width * sizeof(float);
  ForEachGroup([&](uint64_t in_qkv, uint64_t in_out) {
    const std::byte* const query = qkv + in_qkv;
    Probabilities(stream, query, scratch);
    products_.out->Run(stream, {.a = scratch, .b = query + 2 * part, .c = out + in_out});
  });
}

void CudaAttention::Backward(device::CudaStream& stream, const std::byte* qkv, const std::byte* out,
                             const std::byte* d_out, std::byte* d_qkv, std::byte* scratch) {
  if (cudnn_ != nullptr) {
    cudnn_->Backward(stream, qkv, out, d_out, d_qkv, scratch);
    return;
  }
  if (fused()) {
    CudaFusedAttentionBackward(stream, shape(), qkv, d_out, Statistics(scratch), d_qkv);
    return;
  }
  ForEachGroup([&](uint64_t in_qkv, uint64_t in_out) {
    BackwardOfGroup(stream, qkv + in_qkv, d_out + in_out, d_qkv + in_qkv, scratch);
  });
}

void CudaAttention::Probabilities(device::CudaStream& stream, const std::byte* query,
                                  std::byte* p) {
  const std::byte* const key = query + call_.width * sizeof(float);
  products_.scores->Run(stream, {.a = query, .b = key, .c = p});
  CudaCausalSoftmax(stream, plan_.heads, call_.sequence, reinterpret_cast<float*>(p));
}

void CudaAttention::BackwardOfGroup(device::CudaStream& stream, const std::byte* query,
                                    const std::byte* d_out, std::byte* d_query,
                                    std::byte* scratch) {
  const uint64_t part = call_.width * sizeof(float);
  std::byte* const p = scratch;
  std::byte* const d_scores = scratch + plan_.second;
  const std::byte* const key = query + part;
  const std::byte* const value = query + 2 * part;
  Probabilities(stream, query, p);
  products_.d_value->Run(stream, {.a = p, .b = d_out, .c = d_query + 2 * part});
  products_.d_scores->Run(stream, {.a = d_out, .b = value, .c = d_scores});
  CudaCausalSoftmaxBackward(stream, plan_.heads, call_.sequence,
                            1 / std::sqrt(static_cast<float>(head_size_)),
                            reinterpret_cast<const float*>(p), reinterpret_cast<float*>(d_scores));
  products_.d_query->Run(stream, {.a = d_scores, .b = key, .c = d_query});
  products_.d_key->Run(stream, {.a = d_scores, .b = query, .c = d_query + part});
}

}  // namespace penstock::kernels
