#include "kernels/model/cuda_head.h"

#include "kernels/model/cuda_add.h"
#include "kernels/model/cuda_round.h"
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
  Chunk chunk{.rows = rows};
  PENSTOCK_ASSIGN(chunk.whole, MakeProducts(blas, rows, plan_.whole, plan_.whole));
  if (plan_.rest == 0) return chunk;
  PENSTOCK_ASSIGN(chunk.rest, MakeProducts(blas, rows, kLogitColumns, plan_.rest));
  return chunk;
}

Result<CudaHead::Products> CudaHead::MakeProducts(const CudaBlas& blas, uint64_t rows,
                                                  uint64_t columns, uint64_t tokens) const {
  Products products;
  if (columns == 0) return products;
  const uint64_t width = call_.width;
  const auto matrix = [&](uint64_t stride, bool transposed = false) {
    return CudaOperand{.dtype = call_.dtype, .stride = stride, .transposed = transposed};
  };
  const auto floats = [](uint64_t stride) {
    return CudaOperand{.dtype = DType::kFloat32, .stride = stride};
  };
  PENSTOCK_ASSIGN(products.logits, CudaProduct::Create(blas, {.m = rows,
                                                              .n = columns,
                                                              .k = width,
                                                              .a = matrix(width),
                                                              .b = matrix(width, true),
                                                              .c = floats(plan_.logit_stride)}));
  PENSTOCK_ASSIGN(products.d_x,
                  CudaProduct::Create(blas, {.m = rows,
                                             .n = width,
                                             .k = columns,
                                             .a = matrix(plan_.logit_stride),
                                             .b = matrix(width),
                                             .c = plan_.sums_d_x ? floats(width) : matrix(width)}));
  PENSTOCK_ASSIGN(products.d_table,
                  CudaProduct::Create(blas, {.m = tokens,
                                             .n = width,
                                             .k = rows,
                                             .a = matrix(plan_.logit_stride, true),
                                             .b = matrix(width),
                                             .c = floats(width)}));
  return products;
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
  if (plan_.rest > 0) CopyTableEnd(stream, data.table, scratch);
  for (uint64_t row = 0; row < call_.rows; row += plan_.rows) {
    RunChunk(stream, call_.rows - row >= plan_.rows ? chunk_ : last_, row, data, scratch);
  }
}

void CudaHead::CopyTableEnd(device::CudaStream& stream, const std::byte* table,
                            std::byte* scratch) const {
  const Bytes row = call_.width * SizeOf(call_.dtype);
  std::byte* const end = scratch + plan_.table_end;
  stream.CopyOnDevice(end, table + (plan_.whole * row).value, plan_.rest * row);
  stream.Zero(end + (plan_.rest * row).value, (kLogitColumns - plan_.rest) * row);
}

void CudaHead::RunChunk(device::CudaStream& stream, Chunk& chunk, uint64_t first_row,
                        const CudaHeadData& data, std::byte* scratch) {
  const uint64_t before = first_row * call_.width * SizeOf(call_.dtype).value;
  CudaHeadData rows = data;
  rows.x += before;
  rows.targets += first_row;
  std::byte* const d_logits = data.d_x == nullptr ? nullptr : scratch + plan_.gradient;
  auto* const losses = reinterpret_cast<double*>(scratch + plan_.losses);
  Logits(stream, chunk, rows, scratch);
  CudaCrossEntropyRows(stream, {.dtype = call_.dtype,
                                .rows = chunk.rows,
                                .vocabulary = call_.vocabulary,
                                .stride = plan_.logit_stride,
                                .logits = reinterpret_cast<const float*>(scratch),
                                .targets = rows.targets,
                                .gradient_scale = data.gradient_scale,
                                .losses = losses,
                                .d_logits = d_logits});
  CudaAddLosses(stream, chunk.rows, losses, data.loss_sum);
  if (d_logits == nullptr) return;
  rows.d_x += before;
  // The order matters, because d_x may be x.
  TableGradient(stream, chunk, rows, d_logits);
  InputGradient(stream, chunk, rows, d_logits, scratch);
}

void CudaHead::Logits(device::CudaStream& stream, Chunk& chunk, const CudaHeadData& data,
                      std::byte* scratch) const {
  if (plan_.whole > 0) {
    chunk.whole.logits->Run(stream, {.a = data.x, .b = data.table, .c = scratch});
  }
  if (plan_.rest == 0) return;
  std::byte* const behind = scratch + plan_.whole * sizeof(float);
  chunk.rest.logits->Run(stream, {.a = data.x, .b = scratch + plan_.table_end, .c = behind});
}

void CudaHead::TableGradient(device::CudaStream& stream, Chunk& chunk, const CudaHeadData& data,
                             const std::byte* d_logits) const {
  const auto add = [&](CudaProduct& product, uint64_t column) {
    auto* const sums = reinterpret_cast<std::byte*>(data.d_table + column * call_.width);
    product.Run(stream, {.a = d_logits + column * SizeOf(call_.dtype).value,
                         .b = data.x,
                         .c = sums,
                         .addend = sums});
  };
  if (plan_.whole > 0) add(*chunk.whole.d_table, 0);
  if (plan_.rest > 0) add(*chunk.rest.d_table, plan_.whole);
}

void CudaHead::InputGradient(device::CudaStream& stream, Chunk& chunk, const CudaHeadData& data,
                             const std::byte* d_logits, std::byte* scratch) const {
  std::byte* const d_x = plan_.sums_d_x ? scratch : data.d_x;
  if (plan_.whole > 0) {
    chunk.whole.d_x->Run(stream, {.a = d_logits, .b = data.table, .c = d_x});
  }
  if (plan_.rest > 0) {
    chunk.rest.d_x->Run(stream, {.a = d_logits + plan_.whole * SizeOf(call_.dtype).value,
                                 .b = scratch + plan_.table_end,
                                 .c = d_x,
                                 .addend = plan_.whole > 0 ? d_x : nullptr});
  }
  if (!plan_.sums_d_x) return;
  CudaRoundFloats(stream, call_.dtype, chunk.rows * call_.width,
                  reinterpret_cast<const float*>(d_x), data.d_x);
}

}  // namespace penstock::kernels
