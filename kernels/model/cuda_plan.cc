#include "kernels/model/cuda_plan.h"

#include <algorithm>

#include "base/check.h"
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
uint64_t AttentionHeads(const OperatorShapes& shapes) {
  const Bytes scores = shapes.sequence * shapes.sequence * SizeOf(DType::kFloat32);
  uint64_t heads = std::clamp<uint64_t>(kScores / scores, 1, shapes.heads);
  while (shapes.heads % heads != 0) --heads;
  return heads;
}

}  // namespace

RowParts::RowParts(uint64_t rows)
    : rows_of_part(std::max(kMinRowsOfPart, DivideUp(rows, kMaxParts))),
      count(DivideUp(rows, rows_of_part)) {}

CudaPlan::CudaPlan(const OperatorOptions& options)
    : parts(options.shapes.batch * options.shapes.sequence),
      logit_stride(DivideUp(options.shapes.vocabulary, 32) * 32),
      attention_heads(AttentionHeads(options.shapes)) {
  const OperatorShapes& shapes = options.shapes;
  const bool single = options.dtype == DType::kFloat32;
  const uint64_t rows = shapes.batch * shapes.sequence;
  const auto aligned = [](Bytes size) { return AlignUp(size, device::kDeviceAlignment); };

  head_rows = HeadRows(logit_stride, rows);
  const Bytes logits = aligned(head_rows * logit_stride * SizeOf(DType::kFloat32));
  const Bytes gradient =
      single ? Bytes{} : aligned(head_rows * logit_stride * SizeOf(options.dtype));
  const Bytes losses = aligned(head_rows * Bytes{sizeof(double)});
  head_gradient = single ? 0 : logits.value;
  head_losses = (logits + gradient).value;

  const Bytes scores = single ? aligned(attention_heads * shapes.sequence * shapes.sequence * 4_B)
                              : aligned(rows * shapes.heads * 4_B);
  attention_second = scores.value;

  const uint64_t columns = std::max(3 * shapes.width, shapes.hidden);
  const Bytes sums = aligned(parts.count * columns * 4_B);
  const Bytes links = aligned(2 * rows * 4_B);
  scratch = kCudaWorkspace + std::max({logits + gradient + losses, scores * 2, sums, links});
}

}  // namespace penstock::kernels
