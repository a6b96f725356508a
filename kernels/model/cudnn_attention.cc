#include "kernels/model/cudnn_attention.h"

#include "base/check.h"

namespace penstock::kernels {
namespace {

Result<std::unique_ptr<CudnnAttentionGraph>> MakeGraph(CudnnLibrary& library,
                                                       const CudnnAttentionSpec& spec,
                                                       Bytes planned) {
  PENSTOCK_ASSIGN(std::unique_ptr<CudnnAttentionGraph> graph, library.MakeAttention(spec));
  if (graph->workspace() <= planned) return graph;
  return MakeError(ErrorCode::kUnavailable,
                   "attention by {}: it needs {} of device memory where {} were planned; take "
                   "another version, {}",
                   library.name(), ToString(graph->workspace()), ToString(planned), kWithoutCudnn);
}

}  // namespace

Result<std::unique_ptr<CudnnAttention>> CudnnAttention::Create(CudnnLibrary& library,
                                                               const AttentionCall& call,
                                                               const CudnnAttentionPlan& plan,
                                                               std::byte* statistics) {
  std::unique_ptr<CudnnAttention> attention(new CudnnAttention(call, plan, statistics));
  CudnnAttentionSpec spec{.dtype = call.dtype,
                          .batch = call.batch,
                          .sequence = call.sequence,
                          .heads = call.heads,
                          .head_size = call.width / call.heads,
                          .width = call.width};
  PENSTOCK_ASSIGN(attention->forward_, MakeGraph(library, spec, plan.workspace));
  spec.batch = plan.sequences;
  spec.heads = plan.heads;
  spec.backward = true;
  PENSTOCK_ASSIGN(attention->backward_, MakeGraph(library, spec, plan.workspace));
  return attention;
}

void CudnnAttention::Forward(device::CudaStream& stream, const std::byte* qkv, std::byte* out,
                             std::byte* workspace) {
  qkv_ = qkv;
  out_ = out;
  const CudnnAttentionData data{.qkv = qkv,
                                .out = out,
                                .statistics = reinterpret_cast<float*>(statistics_),
                                .workspace = workspace};
  stream.Launch([&](cudaStream_t handle) { return forward_->Run(handle, data); });
}

void CudnnAttention::Backward(device::CudaStream& stream, const std::byte* qkv,
                              const std::byte* out, const std::byte* d_out, std::byte* d_qkv,
                              std::byte* workspace) {
  PENSTOCK_CHECK(qkv == qkv_ && out == out_, "the backward of attention without its forward");
  const uint64_t element = SizeOf(call_.dtype).value;
  const uint64_t head_bytes = call_.width / call_.heads * element;
  const uint64_t row_bytes = call_.width * element;
  for (uint64_t batch = 0; batch < call_.batch; batch += plan_.sequences) {
    for (uint64_t head = 0; head < call_.heads; head += plan_.heads) {
      const uint64_t at = batch * call_.sequence * row_bytes + head * head_bytes;
      const uint64_t in_qkv = 3 * batch * call_.sequence * row_bytes + head * head_bytes;
      const uint64_t rows = (batch * call_.heads + head) * call_.sequence;
      // NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast): backward reads it
      auto* const written = const_cast<std::byte*>(out);
      const CudnnAttentionData data{.qkv = qkv + in_qkv,
                                    .out = written + at,
                                    .d_out = d_out + at,
                                    .statistics = reinterpret_cast<float*>(statistics_) + rows,
                                    .d_qkv = d_qkv + in_qkv,
                                    .workspace = workspace};
      stream.Launch([&](cudaStream_t handle) { return backward_->Run(handle, data); });
    }
  }
}

}  // namespace penstock::kernels
