// Backward adds rows in their order without atomics: rows of the same token are linked, each to the
// next one, and the thread of the first row follows the links.
#include "kernels/model/cuda_embedding.h"

#include "kernels/cuda_elements.cuh"
#include "kernels/cuda_launch.cuh"
#include "kernels/cuda_reduce.cuh"

namespace penstock::kernels {
namespace {

constexpr int32_t kNone = -1;

template <typename T>
__global__ void ForwardKernel(CudaEmbedding embedding, const T* token_table,
                              const T* position_table, T* out) {
  const uint64_t width = embedding.width;
  const uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= embedding.rows * width) return;
  const uint64_t row = i / width;
  const uint64_t column = i % width;
  const auto token = static_cast<uint64_t>(embedding.tokens[row]);
  const uint64_t position = row % embedding.sequence;
  out[i] = FromFloat<T>(ToFloat(token_table[token * width + column]) +
                        ToFloat(position_table[position * width + column]));
}

/// next[r]: none.
__global__ void UnlinkKernel(uint64_t rows, int32_t* next) {
  const uint64_t row = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (row < rows) next[row] = kNone;
}

/// A warp to a row looks back for the nearest row of the same token, 32 rows at a time. Each row is
/// the next one of at most one row, so that no two warps write the same link.
__global__ void LinkKernel(uint64_t rows, const int32_t* tokens, int32_t* next, int32_t* is_first) {
  const uint64_t row = (uint64_t{blockIdx.x} * blockDim.x + threadIdx.x) / kWarp;
  const unsigned lane = threadIdx.x % kWarp;
  if (row >= rows) return;
  const int32_t token = tokens[row];
  int32_t previous = kNone;
  for (uint64_t end = row; end > 0 && previous == kNone; end -= min(end, uint64_t{kWarp})) {
    const bool same = lane < end && tokens[end - 1 - lane] == token;
    const unsigned lanes = __ballot_sync(kAllLanes, same);
    if (lanes != 0) previous = static_cast<int32_t>(end - 1) - (__ffs(static_cast<int>(lanes)) - 1);
  }
  if (lane != 0) return;
  is_first[row] = previous == kNone ? 1 : 0;
  if (previous != kNone) next[previous] = static_cast<int32_t>(row);
}

/// Block (row, tile of columns).
template <typename T>
__global__ void TokensKernel(CudaEmbedding embedding, uint64_t column_tiles, const T* d_out,
                             const int32_t* next, const int32_t* is_first, float* d_token_table) {
  const uint64_t width = embedding.width;
  const uint64_t first = blockIdx.x / column_tiles;
  const uint64_t column = blockIdx.x % column_tiles * blockDim.x + threadIdx.x;
  if (is_first[first] == 0 || column >= width) return;
  float* const sum =
      d_token_table + static_cast<uint64_t>(embedding.tokens[first]) * width + column;
  float value = embedding.adds_once ? 0 : *sum;
  for (auto row = static_cast<int32_t>(first); row != kNone; row = next[row]) {
    value += ToFloat(d_out[static_cast<uint64_t>(row) * width + column]);
  }
  *sum = embedding.adds_once ? *sum + value : value;
}

template <typename T>
__global__ void PositionsKernel(CudaEmbedding embedding, const T* d_out, float* d_position_table) {
  const uint64_t stride = embedding.sequence * embedding.width;
  const uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= stride) return;
  float value = embedding.adds_once ? 0 : d_position_table[i];
  for (uint64_t at = i; at < embedding.rows * embedding.width; at += stride) {
    value += ToFloat(d_out[at]);
  }
  d_position_table[i] = embedding.adds_once ? d_position_table[i] + value : value;
}

}  // namespace

void CudaEmbeddingForward(device::CudaStream& stream, const CudaEmbedding& embedding,
                          const std::byte* token_table, const std::byte* position_table,
                          std::byte* out) {
  WithElements(embedding.dtype, 1, [&]<typename T, int N>() {
    Launch(stream, "the embedding", ForwardKernel<T>,
           OneThreadEach(embedding.rows * embedding.width), embedding,
           reinterpret_cast<const T*>(token_table), reinterpret_cast<const T*>(position_table),
           reinterpret_cast<T*>(out));
  });
}

void CudaEmbeddingBackward(device::CudaStream& stream, const CudaEmbedding& embedding,
                           const std::byte* d_out, int32_t* links, float* d_token_table,
                           float* d_position_table) {
  const char* const what = "the gradient of the embedding";
  const uint64_t rows = embedding.rows;
  int32_t* const next = links;
  int32_t* const is_first = links + rows;
  Launch(stream, what, UnlinkKernel, OneThreadEach(rows), rows, next);
  Launch(stream, what, LinkKernel, OneThreadEach(rows * kWarp), rows, embedding.tokens, next,
         is_first);
  WithElements(embedding.dtype, 1, [&]<typename T, int N>() {
    const auto* const from = reinterpret_cast<const T*>(d_out);
    const uint64_t column_tiles = DivideUp(embedding.width, kThreads);
    Launch(stream, what, TokensKernel<T>, {rows * column_tiles, dim3(kThreads)}, embedding,
           column_tiles, from, next, is_first, d_token_table);
    Launch(stream, what, PositionsKernel<T>, OneThreadEach(embedding.sequence * embedding.width),
           embedding, from, d_position_table);
  });
}

}  // namespace penstock::kernels
