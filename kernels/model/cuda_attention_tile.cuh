// A warp's 16 rows against tiles in shared memory: what the fused attention kernels
// (kernels/model/cuda_fused_attention.cu) multiply, reduce and store.
//
// A tile has rows of kHead elements, kStride<kHead> apart. A block has four warps with 16 rows
// each. All lanes of a warp call the functions together, all threads of a block LoadTile.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda_elements.cuh"
#include "kernels/cuda_reduce.cuh"
#include "kernels/dtype.h"
#include "kernels/model/cuda_mma.cuh"

namespace penstock::kernels {

inline constexpr unsigned kWarps = 4;
inline constexpr unsigned kBlockRows = 16 * kWarps;
inline constexpr unsigned kBlockThreads = 32 * kWarps;

/// Elements from a row of a tile to the next: eight rows at the same columns lie in different
/// banks.
template <int kHead>
inline constexpr unsigned kStride = kHead + 8;

/// Fills a tile of kRows rows: row r is the head's at from + r · stride, zero beyond `rows` and
/// beyond the head.
template <int kHead, int kRows, typename T>
__device__ void LoadTile(const T* from, uint64_t stride, unsigned rows, unsigned head_size,
                         T* tile) {
  if (head_size % 8 == 0) {
    constexpr unsigned kPacks = kHead / 8;
    for (unsigned i = threadIdx.x; i < kRows * kPacks; i += kBlockThreads) {
      const unsigned row = i / kPacks;
      const unsigned column = i % kPacks * 8;
      Pack<T, 8> pack{};
      if (row < rows && column < head_size) pack = LoadPack<8>(from + row * stride + column);
      StorePack(pack, tile + row * kStride<kHead> + column);
    }
    return;
  }
  for (unsigned i = threadIdx.x; i < kRows * kHead; i += kBlockThreads) {
    const unsigned row = i / kHead;
    const unsigned column = i % kHead;
    const bool inside = row < rows && column < head_size;
    tile[row * kStride<kHead> + column] = inside ? from[row * stride + column] : T{};
  }
}

/// The number of rows [first, first + kRows) that the sequence has.
template <int kRows>
__device__ unsigned RowsFrom(unsigned first, unsigned sequence) {
  return first >= sequence ? 0 : min(sequence - first, unsigned{kRows});
}

/// The warp's 16 rows of a tile as left operands.
template <int kHead, typename T>
__device__ void LoadRows(const T* tile, Left (&rows)[kHead / 16]) {
  const T* const corner = tile + threadIdx.x / kWarp * 16 * kStride<kHead>;
  for (int k = 0; k < kHead / 16; ++k) rows[k] = LoadLeft(corner + k * 16, kStride<kHead>);
}

/// sums[16][kColumns] = rows · tileᵀ
template <int kHead, int kColumns, typename T>
__device__ void MultiplyTransposed(const Left (&rows)[kHead / 16], const T* tile,
                                   Sums (&sums)[kColumns / 8]) {
#pragma unroll
  for (int n = 0; n < kColumns / 8; ++n) sums[n] = Sums();
#pragma unroll
  for (int k = 0; k < kHead / 16; ++k) {
#pragma unroll
    for (int n = 0; n < kColumns / 16; ++n) {
      const RightPair right =
          LoadRightTransposed(tile + n * 16 * kStride<kHead> + k * 16, kStride<kHead>);
      MultiplyAdd<T>(rows[k], right, 0, sums[2 * n]);
      MultiplyAdd<T>(rows[k], right, 1, sums[2 * n + 1]);
    }
  }
}

/// sums[16][kHead] += weights[16][kColumns] · tile[kColumns][kHead], weights rounded to T
template <int kHead, int kColumns, typename T>
__device__ void MultiplyTile(const Sums (&weights)[kColumns / 8], const T* tile,
                             Sums (&sums)[kHead / 8]) {
#pragma unroll
  for (int k = 0; k < kColumns / 16; ++k) {
    const Left left = AsLeft<T>(weights[2 * k], weights[2 * k + 1]);
#pragma unroll
    for (int n = 0; n < kHead / 16; ++n) {
      const RightPair right = LoadRight(tile + k * 16 * kStride<kHead> + n * 16, kStride<kHead>);
      MultiplyAdd<T>(left, right, 0, sums[2 * n]);
      MultiplyAdd<T>(left, right, 1, sums[2 * n + 1]);
    }
  }
}

/// The reduction over the four lanes that share a row of sums.
template <typename Reduce>
__device__ float ReduceRow(float value, Reduce reduce) {
  value = reduce(value, __shfl_xor_sync(kAllLanes, value, 1));
  return reduce(value, __shfl_xor_sync(kAllLanes, value, 2));
}

/// Calls visit(value, row of the warp's 16, column) for the lane's values of sums.
template <int kTiles, typename Visit>
__device__ void ForEachSum(Sums (&sums)[kTiles], Visit visit) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      visit(sums[n].values[i], RowOfSums() + i / 2 * 8, n * 8 + ColumnOfSums() + i % 2);
    }
  }
}

/// Rounds the warp's rows to where `place(row)` says, but for rows that `row_limit` cuts off.
template <int kHead, typename T, typename Place>
__device__ void StoreRows(Sums (&sums)[kHead / 8], unsigned head_size, unsigned row_limit, T* out,
                          Place place) {
  ForEachSum(sums, [&](float& value, unsigned row, unsigned column) {
    if (row < row_limit && column < head_size) out[place(row) + column] = FromFloat<T>(value);
  });
}

}  // namespace penstock::kernels
