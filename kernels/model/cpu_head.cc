#include "kernels/model/cpu_head.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/cpu_parallel.h"
#include "kernels/model/cpu_rows.h"

namespace penstock::kernels {
namespace {

/// fp32 logits of a chunk: few enough to stay in the caches for small vocabularies. For large ones
/// the table and its gradient pass through the cores once a chunk, so that a chunk has a minimum of
/// rows.
constexpr Bytes kLogitsOfChunk = 2_MiB;
constexpr uint64_t kMinChunkRows = 128;
/// Elements of a table in the smallest piece of work of a thread.
constexpr uint64_t kTableGrain = 1024;

/// Rows of a chunk: depends on the vocabulary alone, never on a budget.
uint64_t ChunkRows(uint64_t vocabulary, uint64_t rows) {
  const uint64_t fitting = kLogitsOfChunk / (vocabulary * SizeOf(DType::kFloat32));
  return std::min(rows, std::max(kMinChunkRows, fitting / 16 * 16));
}

}  // namespace

Head::Head(const HeadCall& call, int threads, Bf16Arithmetic arithmetic, bool adds_once)
    : call_(call), threads_(threads), logit_stride_((call.vocabulary + 31) / 32 * 32) {
  chunk_ = MakeChunk(ChunkRows(call.vocabulary, call.rows), arithmetic);
  if (const uint64_t rest = call.rows % chunk_.rows; rest > 0) last_ = MakeChunk(rest, arithmetic);
  const uint64_t elements = chunk_.rows * logit_stride_;
  logits_ = cursor_.Take(elements * SizeOf(DType::kFloat32));
  d_logits_ = call.dtype == DType::kFloat32 ? logits_ : cursor_.Take(elements * SizeOf(call.dtype));
  losses_ = cursor_.Take(Bytes{chunk_.rows * sizeof(double)});
  // What a single chunk adds is computed first anyhow.
  if (adds_once && call.rows > chunk_.rows) {
    table_ = cursor_.Take(call.vocabulary * call.width * SizeOf(DType::kFloat32));
  }
  Bytes inner;
  for (const Chunk* chunk : {&chunk_, &last_}) {
    if (chunk->rows == 0) continue;
    inner = std::max(
        {inner, chunk->logits->scratch(), chunk->d_x->scratch(), chunk->d_table->scratch()});
  }
  inner_ = cursor_.Take(inner);
}

Head::Chunk Head::MakeChunk(uint64_t rows, Bf16Arithmetic arithmetic) const {
  const uint64_t width = call_.width;
  const uint64_t vocabulary = call_.vocabulary;
  const Operand matrix{.dtype = call_.dtype, .stride = width};
  const Operand table_transposed{.dtype = call_.dtype, .stride = width, .transposed = true};
  const Operand d_logits{.dtype = call_.dtype, .stride = logit_stride_};
  const Operand d_logits_transposed{
      .dtype = call_.dtype, .stride = logit_stride_, .transposed = true};
  return {.rows = rows,
          .logits = MakeProduct({.m = rows,
                                 .n = vocabulary,
                                 .k = width,
                                 .a = matrix,
                                 .b = table_transposed,
                                 .c = {.dtype = DType::kFloat32, .stride = logit_stride_},
                                 .threads = threads_},
                                arithmetic),
          .d_x = MakeProduct({.m = rows,
                              .n = width,
                              .k = vocabulary,
                              .a = d_logits,
                              .b = matrix,
                              .c = matrix,
                              .threads = threads_},
                             arithmetic),
          .d_table = MakeProduct({.m = vocabulary,
                                  .n = width,
                                  .k = rows,
                                  .a = d_logits_transposed,
                                  .b = matrix,
                                  .c = {.dtype = DType::kFloat32, .stride = width},
                                  .epilogue = Epilogue::kAccumulate,
                                  .threads = threads_},
                                 arithmetic)};
}

void Head::Run(const HeadData& data, std::byte* scratch) {
  if (!table_.has_value() || data.d_table == nullptr) {
    RunChunks(data, scratch);
    return;
  }
  HeadData apart = data;
  apart.d_table = reinterpret_cast<float*>(scratch + *table_);
  const uint64_t elements = call_.vocabulary * call_.width;
  ParallelRanges(threads_, elements, kTableGrain, [&](Range range) {
    std::fill_n(apart.d_table + range.begin, range.size(), 0.0F);
  });
  RunChunks(apart, scratch);
  ParallelRanges(threads_, elements, kTableGrain, [&](Range range) {
    AddToFloats(DType::kFloat32, apart.d_table + range.begin, data.d_table + range.begin,
                range.size());
  });
}

void Head::RunChunks(const HeadData& data, std::byte* scratch) {
  for (uint64_t row = 0; row < call_.rows; row += chunk_.rows) {
    RunChunk(call_.rows - row >= chunk_.rows ? chunk_ : last_, row, data, scratch);
  }
}

void Head::RunChunk(const Chunk& chunk, uint64_t first_row, const HeadData& data,
                    std::byte* scratch) {
  const DType dtype = call_.dtype;
  const uint64_t vocabulary = call_.vocabulary;
  const uint64_t row_size = call_.width * SizeOf(dtype).value;
  const std::byte* x = data.x + first_row * row_size;
  std::byte* const d_logits = data.d_x == nullptr ? nullptr : scratch + d_logits_;
  auto* const losses = reinterpret_cast<double*>(scratch + losses_);

  chunk.logits->Run({.a = x, .b = data.table, .c = scratch + logits_}, scratch + inner_);
  ParallelRanges(threads_, chunk.rows, 1, [&](Range range) {
    for (uint64_t row = range.begin; row < range.end; ++row) {
      const auto target = static_cast<uint64_t>(data.targets[first_row + row]);
      PENSTOCK_CHECK(target < vocabulary, "target {} of {}", target, vocabulary);
      const uint64_t start = row * logit_stride_;
      void* d_row = d_logits == nullptr ? nullptr : d_logits + start * SizeOf(dtype).value;
      losses[row] = CrossEntropyRow(reinterpret_cast<float*>(scratch + logits_) + start, vocabulary,
                                    target, data.gradient_scale, dtype, d_row);
    }
  });
  for (uint64_t row = 0; row < chunk.rows; ++row) *data.loss_sum += losses[row];

  if (d_logits == nullptr) return;
  // The order matters, because d_x may be x.
  chunk.d_table->Run({.a = d_logits, .b = x, .c = reinterpret_cast<std::byte*>(data.d_table)},
                     scratch + inner_);
  chunk.d_x->Run({.a = d_logits, .b = data.table, .c = data.d_x + first_row * row_size},
                 scratch + inner_);
}

}  // namespace penstock::kernels
