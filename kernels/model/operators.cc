#include "kernels/model/operators.h"

#include "kernels/model/operator_factories.h"

namespace penstock::kernels {
namespace {

/// Queries in a block of cpu_attention_head.cc, of a long sequence.
constexpr uint64_t kQueriesOfBlock = 128;
/// So many blocks do not count.
constexpr uint64_t kFewBlocks = 16;
/// Six products of a block, with the code that oneDNN makes for each. Measured: 127 KiB.
constexpr Bytes kBlockHeap = 160_KiB;

}  // namespace

Bytes OperatorHeap(device::Kind kind, const OperatorOptions& options) {
  const uint64_t blocks = options.shapes.sequence / kQueriesOfBlock;
  if (kind == device::Kind::kCuda || blocks <= kFewBlocks) return Bytes{};
  return kBlockHeap * (blocks - kFewBlocks) * static_cast<uint64_t>(options.threads);
}

Result<Bytes> OperatorScratch(device::Kind kind, const OperatorOptions& options) {
  return kind == device::Kind::kCuda ? CudaOperatorScratch(options) : CpuOperatorScratch(options);
}

Result<std::unique_ptr<Operators>> CreateOperators(device::Device& device,
                                                   const OperatorOptions& options) {
  return device.kind() == device::Kind::kCuda ? CreateCudaOperators(device, options)
                                              : CreateCpuOperators(device, options);
}

}  // namespace penstock::kernels
