#include "kernels/model/cuda_plan.h"

#include <algorithm>
#include <set>
#include <variant>

#include "device/device.h"
#include "kernels/cuda_grid.h"

namespace penstock::kernels {
namespace {

constexpr uint64_t kMinRowsOfPart = 32;
constexpr uint64_t kMaxParts = 128;

/// fp32 logits of a chunk: enough rows to fill a large GPU, in a memory that it can spare.
constexpr Bytes kLogitsOfChunk = 256_MiB;
constexpr uint64_t kMinHeadRows = 128;
/// 16 bytes of the narrowest dtype.
constexpr uint64_t kFastColumns = 8;

/// Scores of the heads that exist at once.
constexpr Bytes kScores = 256_MiB;

uint64_t HeadRows(uint64_t columns, uint64_t rows) {
  const uint64_t fitting = kLogitsOfChunk / (columns * SizeOf(DType::kFloat32));
  return std::min(rows, std::max(kMinHeadRows, fitting / kMinHeadRows * kMinHeadRows));
}

/// What cuDNN's backward rounds a sequence up to (seen in 9.19), and room for what another version
/// may take beside what is computed here.
constexpr uint64_t kCudnnQueries = 64;
constexpr uint64_t kCudnnKeys = 128;
constexpr Bytes kCudnnSpare = 1_MiB;

/// The largest divisor of n that is at most `limit`; 1, if need be.
uint64_t LargestDivisor(uint64_t n, uint64_t limit) {
  uint64_t divisor = std::clamp<uint64_t>(limit, 1, n);
  while (n % divisor != 0) --divisor;
  return divisor;
}

/// The most heads that divide all of them and whose scores fit; one, if need be.
uint64_t AttentionHeads(const AttentionCall& call) {
  const Bytes scores = call.sequence * call.sequence * SizeOf(DType::kFloat32);
  return LargestDivisor(call.heads, kScores / scores);
}

Bytes Aligned(Bytes size) { return AlignUp(size, device::kDeviceAlignment); }

/// Returns the scratch for sums over rows of this many columns.
Bytes ColumnSums(uint64_t rows, uint64_t columns) {
  return Aligned(RowParts(rows).count * columns * 4_B);
}

/// What a call of each kind needs.
struct ScratchOf {
  const OperatorOptions& options;

  Bytes operator()(const EmbeddingCall& call) const { return Aligned(2 * call.rows * 4_B); }
  Bytes operator()(const LayerNormCall& call) const { return ColumnSums(call.rows, call.width); }
  Bytes operator()(const LinearCall& call) const { return ColumnSums(call.rows, call.n); }
  Bytes operator()(const LinearGeluCall&) const { return {}; }
  Bytes operator()(const AttentionCall& call) const {
    return options.attention == AttentionKernel::kCudnn ? CudnnAttentionPlan(call).workspace
                                                        : CudaAttentionPlan(call).scratch;
  }
  Bytes operator()(const HeadCall& call) const {
    return CudaHeadPlan(call, options.adds_once).scratch;
  }
};

}  // namespace

RowParts::RowParts(uint64_t rows)
    : rows_of_part(std::max(kMinRowsOfPart, DivideUp(rows, kMaxParts))),
      count(DivideUp(rows, rows_of_part)) {}

CudaHeadPlan::CudaHeadPlan(const HeadCall& call, bool adds_once)
    : whole(call.vocabulary % kFastColumns == 0 ? call.vocabulary
                                                : call.vocabulary / kLogitColumns * kLogitColumns),
      rest(call.vocabulary - whole),
      logit_stride(DivideUp(call.vocabulary, kLogitColumns) * kLogitColumns) {
  const bool single = call.dtype == DType::kFloat32;
  sums_d_x = !single && whole > 0 && rest > 0;
  const uint64_t columns = sums_d_x ? std::max(logit_stride, call.width) : logit_stride;
  rows = HeadRows(columns, call.rows);
  const Bytes logits = Aligned(rows * columns * SizeOf(DType::kFloat32));
  const Bytes rounded = single ? Bytes{} : Aligned(rows * logit_stride * SizeOf(call.dtype));
  gradient = single ? 0 : logits.value;
  losses = (logits + rounded).value;
  scratch = logits + rounded + Aligned(rows * Bytes{sizeof(double)});
  table_end = scratch.value;
  if (rest > 0) scratch += Aligned(kLogitColumns * call.width * SizeOf(call.dtype));
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

CudnnAttentionPlan::CudnnAttentionPlan(const AttentionCall& call, Bytes scores)
    : statistics(Aligned(call.batch * call.sequence * call.heads * 4_B)) {
  const Bytes of_head = DivideUp(call.sequence, kCudnnQueries) * kCudnnQueries *
                        (DivideUp(call.sequence, kCudnnKeys) * kCudnnKeys * 2_B);
  const uint64_t fitting = std::max<uint64_t>(scores / of_head, 1);
  heads = LargestDivisor(call.heads, fitting);
  sequences = heads == call.heads ? LargestDivisor(call.batch, fitting / heads) : 1;
  workspace = Aligned(sequences * (heads * (of_head + call.sequence * 4_B))) + kCudnnSpare;
}

Bytes CudaScratch(const OperatorCall& call, const OperatorOptions& options) {
  return std::visit(ScratchOf{options}, call);
}

CudaScratchPlan::CudaScratchPlan(const OperatorOptions& options) {
  std::set<AttentionCall> attentions;
  for (const OperatorCall& call : options.calls) {
    shared = std::max(shared, CudaScratch(call, options));
    const auto* const attention = std::get_if<AttentionCall>(&call);
    if (attention == nullptr || options.attention == AttentionKernel::kOwn) continue;
    if (attentions.insert(*attention).second) kept += CudnnAttentionPlan(*attention).statistics;
  }
  all = kCudaWorkspace + shared + kept;
}

}  // namespace penstock::kernels
