#include "kernels/model/model_operators.h"

#include "kernels/model/operator_factories.h"

namespace penstock::kernels {
namespace {

/// Queries in a block of cpu_attention_head.cc, of a long sequence.
constexpr uint64_t kQueriesOfBlock = 128;
/// This many blocks are negligible.
constexpr uint64_t kFewBlocks = 16;
/// Six products of a block, with the code that oneDNN makes for each. Measured: 127 KiB.
constexpr Bytes kBlockHeap = 160_KiB;

Status CheckDevice(device::Kind kind, const OperatorOptions& options) {
  if (kind == device::Kind::kCuda || options.attention == AttentionKernel::kOwn) return {};
  return MakeError(
      ErrorCode::kInvalidArgument,
      "operators: attention by cuDNN is for the CUDA device; use --device cuda, or set "
      "penstock.attention to \"own\"");
}

}  // namespace

Bytes OperatorHeap(device::Kind kind, const OperatorOptions& options) {
  Bytes heap;
  if (kind == device::Kind::kCuda) return heap;
  for (const OperatorCall& call : options.calls) {
    const auto* const attention = std::get_if<AttentionCall>(&call);
    const uint64_t blocks = attention == nullptr ? 0 : attention->sequence / kQueriesOfBlock;
    if (blocks <= kFewBlocks) continue;
    heap += kBlockHeap * (blocks - kFewBlocks) * static_cast<uint64_t>(options.threads);
  }
  return heap;
}

Result<Bytes> OperatorScratch(device::Kind kind, const OperatorOptions& options) {
  PENSTOCK_TRY(CheckDevice(kind, options));
  return kind == device::Kind::kCuda ? CudaOperatorScratch(options) : CpuOperatorScratch(options);
}

Result<std::unique_ptr<ModelOperators>> CreateModelOperators(device::Device& device,
                                                             const OperatorOptions& options) {
  PENSTOCK_TRY(CheckDevice(device.kind(), options));
  return device.kind() == device::Kind::kCuda ? CreateCudaOperators(device, options)
                                              : CreateCpuOperators(device, options);
}

}  // namespace penstock::kernels
