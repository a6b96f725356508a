// The work of a block of the fused attention kernels (kernels/model/cuda_fused_attention.cu): its
// task and rows, their places, and the loop over the tiles of keys and values.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/model/cuda_attention_tile.cuh"
#include "kernels/model/cuda_fused_attention.h"

namespace penstock::kernels {

/// One head of one sequence: its rows in qkv, and in out.
struct AttentionTask {
  uint64_t index;
  uint64_t width;
  uint64_t first_row;
  uint64_t column;
  unsigned sequence;
  unsigned head_size;

  __device__ AttentionTask(const CudaAttentionShape& shape, uint64_t task)
      : index(task),
        width(shape.heads * shape.head_size),
        first_row(task / shape.heads * shape.sequence),
        column(task % shape.heads * shape.head_size),
        sequence(static_cast<unsigned>(shape.sequence)),
        head_size(static_cast<unsigned>(shape.head_size)) {}

  /// Element 0 of the head in a row of queries (0), keys (1) or values (2).
  __device__ uint64_t InQkv(unsigned row, unsigned part) const {
    return ((first_row + row) * 3 + part) * width + column;
  }
  __device__ uint64_t InOut(unsigned row) const { return (first_row + row) * width + column; }
  __device__ uint64_t InStatistics(unsigned row) const { return index * sequence + row; }
  /// Returns the scale of the scores.
  __device__ float scale() const { return 1 / sqrtf(static_cast<float>(head_size)); }
};

/// Which block of rows and which task a thread block has; those with the most work come first.
struct AttentionWork {
  unsigned first;
  uint64_t task;
};
template <int kRows>
__device__ AttentionWork QueriesOfBlock(const CudaAttentionShape& shape) {
  const auto blocks = static_cast<unsigned>((shape.sequence + kRows - 1) / kRows);
  const auto turn = static_cast<unsigned>(blockIdx.x / shape.tasks);
  return {(blocks - 1 - turn) * kRows, blockIdx.x % shape.tasks};
}
template <int kRows>
__device__ AttentionWork KeysOfBlock(const CudaAttentionShape& shape) {
  return {static_cast<unsigned>(blockIdx.x / shape.tasks) * kRows, blockIdx.x % shape.tasks};
}

/// Two tiles of kRows rows in shared memory: those that are computed with, and behind them room for
/// the next two.
template <int kHead, int kRows, typename T>
struct TilePairs {
  static constexpr unsigned kTile = kRows * kStride<kHead>;
  T* tiles;

  __device__ T* First(unsigned turn) const { return tiles + turn % 2 * 2 * kTile; }
  __device__ T* Second(unsigned turn) const { return First(turn) + kTile; }
};

/// Begins to copy a block's rows of the part of qkv, and of d_out.
template <int kHead, int kRows, typename T>
__device__ void CopyOfQkv(const AttentionTask& task, const T* qkv, unsigned first, unsigned part,
                          T* tile) {
  CopyTile<kHead, kRows>(qkv + task.InQkv(first, part), 3 * task.width,
                         RowsFrom<kRows>(first, task.sequence), task.head_size, tile);
}
template <int kHead, int kRows, typename T>
__device__ void CopyOfOut(const AttentionTask& task, const T* d_out, unsigned first, T* tile) {
  CopyTile<kHead, kRows>(d_out + task.InOut(first), task.width,
                         RowsFrom<kRows>(first, task.sequence), task.head_size, tile);
}

/// Calls visit(first key, keys, values) for tiles of the first `end` keys. All threads of the block
/// call it; copies that they have begun before have ended when visit is called.
template <int kHead, int kKeys, typename T, typename Visit>
__device__ void ForEachTileOfKeys(const AttentionTask& task, const T* qkv, unsigned end,
                                  TilePairs<kHead, kKeys, T> pairs, Visit visit) {
  const auto copy = [&](unsigned first, unsigned turn) {
    CopyOfQkv<kHead, kKeys>(task, qkv, first, 1, pairs.First(turn));
    CopyOfQkv<kHead, kKeys>(task, qkv, first, 2, pairs.Second(turn));
  };
  unsigned turn = 0;
  copy(0, turn);
  for (unsigned first = 0; first < end; first += kKeys, ++turn) {
    WaitForCopies();
    // The copies are visible, and no thread still reads the tiles before these.
    __syncthreads();
    if (first + kKeys < end) copy(first + kKeys, turn + 1);
    visit(first, pairs.First(turn), pairs.Second(turn));
  }
  __syncthreads();
}

}  // namespace penstock::kernels
