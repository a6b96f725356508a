// Multiplies, reduces and stores a warp's rows and tiles in shared memory, for the fused attention
// kernels (kernels/model/cuda_fused_attention.cu).
//
// A tile has rows of kHead elements, kStride<kHead> apart. A block has four warps; each has kTiles
// times 16 rows, so that data loaded of the other side serves that many products. All lanes of a
// warp call the functions together, all threads of a block CopyTile.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda_elements.cuh"
#include "kernels/cuda_reduce.cuh"
#include "kernels/dtype.h"
#include "kernels/model/cuda_mma.cuh"

namespace penstock::kernels {

inline constexpr unsigned kWarps = 4;
inline constexpr unsigned kBlockThreads = 32 * kWarps;

/// Rows of a warp, and of a block.
template <int kTiles>
inline constexpr unsigned kWarpRows = 16 * kTiles;
template <int kTiles>
inline constexpr unsigned kBlockRows = kWarps* kWarpRows<kTiles>;

/// Elements from a row of a tile to the next: eight rows at the same columns lie in different
/// banks.
template <int kHead>
inline constexpr unsigned kStride = kHead + 8;

/// Begins to fill a tile of kRows rows: row r is the head's at from + r · stride, zero beyond
/// `rows` and beyond the head. It is there after WaitForCopies by every thread, and a barrier.
template <int kHead, int kRows, typename T>
__device__ void CopyTile(const T* from, uint64_t stride, unsigned rows, unsigned head_size,
                         T* tile) {
  if (head_size % 8 == 0) {
    constexpr unsigned kPacks = kHead / 8;
#pragma unroll 2  // with all addresses at once there are too few registers
    for (unsigned i = threadIdx.x; i < kRows * kPacks; i += kBlockThreads) {
      const unsigned row = i / kPacks;
      const unsigned column = i % kPacks * 8;
      const bool inside = row < rows && column < head_size;
      Copy16Bytes(inside ? from + row * stride + column : from, inside,
                  tile + row * kStride<kHead> + column);
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

/// The first of the warp's rows in a tile of the block's.
template <int kHead, int kTiles, typename T>
__device__ const T* RowsOfWarp(const T* tile) {
  return tile + threadIdx.x / kWarp * kWarpRows<kTiles> * kStride<kHead>;
}

/// sums[kTiles · 16][kColumns] = rows · tileᵀ; `rows` are the warp's.
template <int kHead, int kColumns, int kTiles, typename T>
__device__ void MultiplyTransposed(const T* rows, const T* tile,
                                   Sums (&sums)[kTiles][kColumns / 8]) {
#pragma unroll
  for (int r = 0; r < kTiles; ++r) {
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) sums[r][n] = Sums();
  }
#pragma unroll
  for (int k = 0; k < kHead / 16; ++k) {
    Left left[kTiles];
#pragma unroll
    for (int r = 0; r < kTiles; ++r) {
      left[r] = LoadLeft(rows + r * 16 * kStride<kHead> + k * 16, kStride<kHead>);
    }
#pragma unroll
    for (int n = 0; n < kColumns / 16; ++n) {
      const RightPair right =
          LoadRightTransposed(tile + n * 16 * kStride<kHead> + k * 16, kStride<kHead>);
#pragma unroll
      for (int r = 0; r < kTiles; ++r) {
        MultiplyAdd<T>(left[r], right, 0, sums[r][2 * n]);
        MultiplyAdd<T>(left[r], right, 1, sums[r][2 * n + 1]);
      }
    }
  }
}

/// sums[kTiles · 16][kHead] += weights[kTiles · 16][kColumns] · tile[kColumns][kHead], weights
/// rounded to T
template <int kHead, int kColumns, int kTiles, typename T>
__device__ void MultiplyTile(const Sums (&weights)[kTiles][kColumns / 8], const T* tile,
                             Sums (&sums)[kTiles][kHead / 8]) {
#pragma unroll
  for (int k = 0; k < kColumns / 16; ++k) {
    Left left[kTiles];
#pragma unroll
    for (int r = 0; r < kTiles; ++r) {
      left[r] = AsLeft<T>(weights[r][2 * k], weights[r][2 * k + 1]);
    }
#pragma unroll
    for (int n = 0; n < kHead / 16; ++n) {
      const RightPair right = LoadRight(tile + k * 16 * kStride<kHead> + n * 16, kStride<kHead>);
#pragma unroll
      for (int r = 0; r < kTiles; ++r) {
        MultiplyAdd<T>(left[r], right, 0, sums[r][2 * n]);
        MultiplyAdd<T>(left[r], right, 1, sums[r][2 * n + 1]);
      }
    }
  }
}

/// The reduction over the four lanes that share a row of sums.
template <typename Reduce>
__device__ float ReduceRow(float value, Reduce reduce) {
  value = reduce(value, __shfl_xor_sync(kAllLanes, value, 1));
  return reduce(value, __shfl_xor_sync(kAllLanes, value, 2));
}

/// The lane's rows: two of each 16. Index i is row RowOfLane(i) of the warp's.
template <int kTiles>
inline constexpr int kLaneRows = 2 * kTiles;
__device__ inline unsigned RowOfLane(unsigned i) { return i / 2 * 16 + RowOfSums() + i % 2 * 8; }

/// Calls visit(value, row of the lane's, column) for the lane's values of sums.
template <int kTiles, int kColumnTiles, typename Visit>
__device__ void ForEachSum(Sums (&sums)[kTiles][kColumnTiles], Visit visit) {
#pragma unroll
  for (int r = 0; r < kTiles; ++r) {
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        visit(sums[r][n].values[i], 2 * r + i / 2, n * 8 + ColumnOfSums() + i % 2);
      }
    }
  }
}

/// Rounds the warp's rows into `place(row)`, except rows beyond `row_limit`.
template <int kHead, int kTiles, typename T, typename Place>
__device__ void StoreRows(const Sums (&sums)[kTiles][kHead / 8], unsigned head_size,
                          unsigned row_limit, T* out, Place place) {
#pragma unroll
  for (int i = 0; i < kLaneRows<kTiles>; ++i) {
    const unsigned row = RowOfLane(i);
    if (row >= row_limit) continue;
    T* const to = out + place(row);
#pragma unroll
    for (int n = 0; n < kHead / 8; ++n) {
      const unsigned column = n * 8 + ColumnOfSums();
      const float* const values = sums[i / 2][n].values + i % 2 * 2;
      if (head_size % 8 == 0) {
        if (column < head_size) {
          *reinterpret_cast<uint32_t*>(to + column) = PackPair<T>(values[0], values[1]);
        }
        continue;
      }
      if (column < head_size) to[column] = FromFloat<T>(values[0]);
      if (column + 1 < head_size) to[column + 1] = FromFloat<T>(values[1]);
    }
  }
}

}  // namespace penstock::kernels
