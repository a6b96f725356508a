#include "kernels/model/cuda_plan.h"

#include <algorithm>

#include "device/device.h"
#include "kernels/cuda_grid.h"

namespace penstock::kernels {
namespace {

constexpr uint64_t kMinRowsOfPart = 32;
constexpr uint64_t kMaxParts = 128;

/// fp32 logits of a chunk: enough rows to fill a large GPU, in a memory that it can spare.
constexpr Bytes kLogitsOfChunk = 256_MiB;
constexpr uint64_t kMinHeadRows = 128;

/// Scores of the heads that exist at once.
constexpr Bytes kScores = 256_MiB;

uint64_t HeadRows(uint64_t stride, uint64_t rows) {
  const uint64_t fitting = kLogitsOfChunk / (stride * SizeOf(DType::kFloat32));
  return std::min(rows, std::max(kMinHeadRows, fitting / kMinHeadRows * kMinHeadRows));
}

/// The most heads that divide all of them and whose scores fit; one, if need be.
uint64_t AttentionHeads(const AttentionCall& call) {
  const Bytes scores = call.sequence * call.sequence * SizeOf(DType::kFloat32);
  uint64_t heads = std::clamp<uint64_t>(kScores / scores, 1, call.heads);
  while (call.heads % heads != 0) --heads;
  return heads;
}

Bytes Aligned(Bytes size) { return AlignUp(size, device::kDeviceAlignment); }

/// For the sums over rows of so many columns.
Bytes ColumnSums(uint64_t rows, uint64_t columns) {
  return Aligned(RowParts(rows).count * columns * 4_B);
}

/// What a call of each kind needs.
struct ScratchOf {
  bool adds_once;

  Bytes operator()(const EmbeddingCall& call) const { return Aligned(2 * call.rows * 4_B); }
  Bytes operator()(const LayerNormCall& call) const { return ColumnSums(call.rows, call.width); }
  Bytes operator()(const LinearCall& call) const { return ColumnSums(call.rows, call.n); }
  Bytes operator()(const LinearGeluCall&) const { return {}; }
  Bytes operator()(const AttentionCall& call) const { return CudaAttentionPlan(call).scratch; }
  Bytes operator()(const HeadCall& call) const { return CudaHeadPlan(call, adds_once).scratch; }
};

}  // namespace

RowParts::RowParts(uint64_t rows)
    : rows_of_part(std::max(kMinRowsOfPart, DivideUp(rows, kMaxParts))),
      count(DivideUp(rows, rows_of_part)) {}

CudaHeadPlan::CudaHeadPlan(const HeadCall& call, bool adds_once)
    : logit_stride(DivideUp(call.vocabulary, 32) * 32) {
  const bool single = call.dtype == DType::kFloat32;
  rows = HeadRows(logit_stride, call.rows);
  const Bytes logits = Aligned(rows * logit_stride * SizeOf(DType::kFloat32));
  const Bytes rounded = single ? Bytes{} : Aligned(rows * logit_stride * SizeOf(call.dtype));
  gradient = single ? 0 : logits.value;
  losses = (logits + rounded).value;
  scratch = logits + rounded + Aligned(rows * Bytes{sizeof(double)});
  // What a single chunk adds is computed first anyhow.
  if (!adds_once || rows == call.rows) return;
  table = scratch.value;
  scratch += Aligned(call.vocabulary * call.width * SizeOf(DType::kFloat32));
}

CudaAttentionPlan::CudaAttentionPlan(const AttentionCall& call) : heads(AttentionHeads(call)) {
  const Bytes scores = call.dtype == DType::kFloat32
                           ? Aligned(heads * call.sequence * call.sequence * 4_B)
                           : Aligned(call.batch * call.sequence * call.heads * 4_B);
  second = scores.value;
  scratch = scores * 2;
}

Bytes CudaScratch(const OperatorCall& call, bool adds_once) {
  return std::visit(ScratchOf{adds_once}, call);
}

Bytes CudaScratch(const OperatorCalls& calls, bool adds_once) {
  Bytes most;
  for (const OperatorCall& call : calls) most = std::max(most, CudaScratch(call, adds_once));
  return kCudaWorkspace + most;
}

}  // namespace penstock::kernels
