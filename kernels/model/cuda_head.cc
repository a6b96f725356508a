#include "kernels/model/cuda_head.h"

#include "kernels/model/cuda_add.h"
#include "kernels/model/cuda_softmax.h"

namespace penstock::kernels {

Result<std::unique_ptr<CudaHead>> CudaHead::Create(const CudaBlas& blas, const HeadCall& call,
                                                   bool adds_once) {
  std::unique_ptr<CudaHead> head(new CudaHead(call, adds_once));
  PENSTOCK_ASSIGN(head->chunk_, head->MakeChunk(blas, head->plan_.rows));
  if (const uint64_t rest = call.rows % head->plan_.rows; rest > 0) {
    PENSTOCK_ASSIGN(head->last_, head->MakeChunk(blas, rest));
  }
  return head;
}

Result<CudaHead::Chunk> CudaHead::MakeChunk(const CudaBlas& blas, uint64_t rows) const {
  const uint64_t width = call_.width;
  const uint64_t vocabulary = call_.vocabulary;
  const auto matrix = [&](uint64_t stride, bool transposed = false) {
    return CudaOperand{.dtype = call_.dtype, .stride = stride, .transposed = transposed};
  };
  Chunk chunk{.rows = rows};
  PENSTOCK_ASSIGN(
      chunk.logits,
      CudaProduct::Create(blas, {.m = rows,
                                 .n = vocabulary,
                                 .k = width,
                                 .a = matrix(width),
                                 .b = matrix(width, true),
                                 .c = {.dtype = DType::kFloat32, .stride = plan_.logit_stride}}));
  PENSTOCK_ASSIGN(chunk.d_x, CudaProduct::Create(blas, {.m = rows,
                                                        .n = width,
                                                        .k = vocabulary,
                                                        .a = matrix(plan_.logit_stride),
                                                        .b = matrix(width),
                                                        .c = matrix(width)}));
  PENSTOCK_ASSIGN(chunk.d_table,
                  CudaProduct::Create(blas, {.m = vocabulary,
                                             .n = width,
                                             .k = rows,
                                             .a = matrix(plan_.logit_stride, true),
                                             .b = matrix(width),
                                             .c = {.dtype = DType::kFloat32, .stride = width}}));
  return chunk;
}

void CudaHead::Run(device::CudaStream& stream, const CudaHeadData& data, std::byte* scratch) {
  if (!plan_.table.has_value() || data.d_table == nullptr) {
    RunChunks(stream, data, scratch);
    return;
  }
  CudaHeadData apart = data;
  apart.d_table = reinterpret_cast<float*>(scratch + *plan_.table);
  const uint64_t elements = call_.vocabulary * call_.width;
  stream.Zero(scratch + *plan_.table, elements * SizeOf(DType::kFloat32));
  RunChunks(stream, apart, scratch);
  CudaAddFloats(stream, elements, apart.d_table, data.d_table);
}

void CudaHead::RunChunks(device::CudaStream& stream, const CudaHeadData& data, std::byte* scratch) {
  for (uint64_t row = 0; row < call_.rows; row += plan_.rows) {
    RunChunk(stream, call_.rows - row >= plan_.rows ? chunk_ : last_, row, data, scratch);
  }
}

void CudaHead::RunChunk(device::CudaStream& stream, Chunk& chunk, uint64_t first_row,
                        const CudaHeadData& data, std::byte* scratch) {
  const uint64_t row_size = call_.width * SizeOf(call_.dtype).value;
  const std::byte* const x = data.x + first_row * row_size;
  std::byte* const d_logits = data.d_x == nullptr ? nullptr : scratch + plan_.gradient;
  auto* const losses = reinterpret_cast<double*>(scratch + plan_.losses);
  chunk.logits->Run(stream, {.a = x, .b = data.table, .c = scratch});
  CudaCrossEntropyRows(stream, {.dtype = call_.dtype,
                                .rows = chunk.rows,
                                .vocabulary = call_.vocabulary,
                                .stride = plan_.logit_stride,
                                .logits = reinterpret_cast<const float*>(scratch),
                                .targets = data.targets + first_row,
                                .gradient_scale = data.gradient_scale,
                                .losses = losses,
                                .d_logits = d_logits});
  CudaAddLosses(stream, chunk.rows, losses, data.loss_sum);
  if (d_logits == nullptr) return;
  // In this order, as d_x may be x.
  auto* const d_table = reinterpret_cast<std::byte*>(data.d_table);
  chunk.d_table->Run(stream, {.a = d_logits, .b = x, .c = d_table, .addend = d_table});
  chunk.d_x->Run(stream, {.a = d_logits, .b = data.table, .c = data.d_x + first_row * row_size});
}

}  // namespace penstock::kernels
