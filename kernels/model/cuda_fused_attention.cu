// The fused attention kernels in bf16 and fp16.
//
// A block of four warps has 64 or 128 rows: of queries in the forward pass, the statistics and the
// gradients of queries; of keys in the gradients of keys and values. Each warp has 16 or 32 of
// them, for the whole size of a head (padded with zeros to kHead). The block goes through tiles of
// the other side in order, and the next tile is copied to shared memory while it computes with this
// one. A warp skips tiles that are fully masked for it, and masks keys only in those that are
// partly masked. Scores exist for one tile at a time, in registers; exponentials are to the base 2.
// Rows of the tiles beyond the sequence are zeros. Sums go in an order that depends on shapes
// alone.
#include "kernels/model/cuda_fused_attention.h"

#include "kernels/cuda_elements.cuh"
#include "kernels/cuda_launch.cuh"
#include "kernels/cuda_reduce.cuh"
#include "kernels/model/cuda_attention_task.cuh"
#include "kernels/model/cuda_attention_tile.cuh"
#include "kernels/model/cuda_mma.cuh"

namespace penstock::kernels {
namespace {

constexpr float kLog2E = 1.4426950408889634f;

/// The online softmax of the lane's rows.
template <int kTiles>
struct RowStates {
  float highest[kLaneRows<kTiles>];  ///< max of the scaled scores so far
  float sum[kLaneRows<kTiles>];      ///< the lane's part of the sums of exponentials

  __device__ RowStates() {
#pragma unroll
    for (int i = 0; i < kLaneRows<kTiles>; ++i) {
      highest[i] = -INFINITY;
      sum[i] = 0;
    }
  }
};

/// Turns scores into exponentials of them times `scale`, relative to the rows' new highest scores;
/// factor: what earlier exponentials are to be multiplied with. With a scale of 1 that of a row's
/// only score is exactly 1.
template <int kTiles, int kColumnTiles>
__device__ void Exponentiate(Sums (&scores)[kTiles][kColumnTiles], float scale,
                             RowStates<kTiles>& state, float (&factor)[kLaneRows<kTiles>]) {
  float highest[kLaneRows<kTiles>];
#pragma unroll
  for (int i = 0; i < kLaneRows<kTiles>; ++i) highest[i] = -INFINITY;
  ForEachSum(scores, [&](float& score, int i, unsigned) { highest[i] = fmaxf(highest[i], score); });
#pragma unroll
  for (int i = 0; i < kLaneRows<kTiles>; ++i) {
    highest[i] = fmaxf(state.highest[i], ReduceRow(highest[i], Maximum()) * scale);
    factor[i] = Exp2(state.highest[i] - highest[i]);
    state.highest[i] = highest[i];
    state.sum[i] *= factor[i];
  }
  ForEachSum(scores, [&](float& score, int i, unsigned) {
    score = Exp2(fmaf(score, scale, -highest[i]));
    state.sum[i] += score;
  });
}

/// Whether a warp with kRows queries from `first_query` on sees a tile from `first_key` on at all,
/// and whether it does not see the whole tile of kKeys.
template <int kRows>
__device__ bool Sees(unsigned first_query, unsigned first_key) {
  return first_key < first_query + kRows;
}
template <int kKeys>
__device__ bool HidesAny(unsigned first_query, unsigned first_key) {
  return first_key + kKeys > first_query + 1;
}

/// Sets the scores of keys behind the query to `hidden`.
template <int kTiles, int kColumnTiles>
__device__ void Hide(Sums (&scores)[kTiles][kColumnTiles], unsigned first_query, unsigned first_key,
                     float hidden) {
  ForEachSum(scores, [&](float& score, int i, unsigned column) {
    if (first_key + column > first_query + RowOfLane(i)) score = hidden;
  });
}

/// Blocks that a multiprocessor is to hold at once: what registers of a thread there are follows.
template <int kHead>
constexpr int kForwardBlocks = kHead == 64 ? 3 : 2;

/// Shared memory: queries, pairs of keys and values.
template <int kHead>
struct Forward {
  static constexpr int kTiles = 2;
  static constexpr int kRows = kBlockRows<kTiles>;
  static constexpr int kKeys = kHead == 64 ? 64 : 32;
};

template <int kHead, typename T>
__global__ void __launch_bounds__(kBlockThreads, kForwardBlocks<kHead>)
    ForwardKernel(CudaAttentionShape shape, const T* qkv, T* out) {
  constexpr int kTiles = Forward<kHead>::kTiles;
  constexpr int kRows = Forward<kHead>::kRows;
  constexpr int kKeys = Forward<kHead>::kKeys;
  auto* const queries = reinterpret_cast<T*>(DynamicShared());
  const TilePairs<kHead, kKeys, T> pairs{queries + kRows * kStride<kHead>};
  const AttentionWork work = QueriesOfBlock<kRows>(shape);
  const AttentionTask task(shape, work.task);
  const unsigned first_query = work.first + threadIdx.x / kWarp * kWarpRows<kTiles>;
  const float scale = task.scale() * kLog2E;
  CopyOfQkv<kHead, kRows>(task, qkv, work.first, 0, queries);

  Sums sums[kTiles][kHead / 8];
  RowStates<kTiles> state;
  const unsigned end = work.first + RowsFrom<kRows>(work.first, task.sequence);
  ForEachTileOfKeys(task, qkv, end, pairs, [&](unsigned first_key, const T* keys, const T* values) {
    if (!Sees<kWarpRows<kTiles>>(first_query, first_key)) return;
    Sums scores[kTiles][kKeys / 8];
    MultiplyTransposed<kHead, kKeys>(RowsOfWarp<kHead, kTiles>(queries), keys, scores);
    if (HidesAny<kKeys>(first_query, first_key)) Hide(scores, first_query, first_key, -INFINITY);
    float factor[kLaneRows<kTiles>];
    Exponentiate(scores, scale, state, factor);
    ForEachSum(sums, [&](float& sum, int i, unsigned) { sum *= factor[i]; });
    MultiplyTile<kHead, kKeys>(scores, values, sums);
  });

  float total[kLaneRows<kTiles>];
#pragma unroll
  for (int i = 0; i < kLaneRows<kTiles>; ++i) total[i] = ReduceRow(state.sum[i], Plus());
  ForEachSum(sums, [&](float& sum, int i, unsigned) { sum /= total[i]; });
  StoreRows<kHead>(sums, task.head_size, RowsFrom<kWarpRows<kTiles>>(first_query, task.sequence),
                   out, [&](unsigned row) { return task.InOut(first_query + row); });
}

/// Shared memory: queries, gradients of their outputs, pairs of keys and values. No bit depends on
/// kTiles.
template <int kTilesOfWarp>
struct QueryGradient {
  static constexpr int kTiles = kTilesOfWarp;
  static constexpr int kRows = kBlockRows<kTiles>;
  static constexpr int kKeys = 32;
  static constexpr int kSharedRows = 2 * kRows + 4 * kKeys;
};

/// First the statistics of the rows, with delta = Σ_keys p (d_out vᵀ), then the gradient:
/// d_q = Σ_keys d_score k, d_score = p (d_out vᵀ − delta) scale.
template <int kHead, int kTiles, typename T>
__global__ void __launch_bounds__(kBlockThreads, 2)
    QueryGradientKernel(CudaAttentionShape shape, const T* qkv, const T* d_out,
                        CudaRowStatistics statistics, T* d_qkv) {
  constexpr int kRows = QueryGradient<kTiles>::kRows;
  constexpr int kKeys = QueryGradient<kTiles>::kKeys;
  constexpr int kStates = kLaneRows<kTiles>;
  auto* const queries = reinterpret_cast<T*>(DynamicShared());
  T* const gradients = queries + kRows * kStride<kHead>;
  const TilePairs<kHead, kKeys, T> pairs{gradients + kRows * kStride<kHead>};
  const AttentionWork work = QueriesOfBlock<kRows>(shape);
  const AttentionTask task(shape, work.task);
  const unsigned first_query = work.first + threadIdx.x / kWarp * kWarpRows<kTiles>;
  const unsigned row_limit = RowsFrom<kWarpRows<kTiles>>(first_query, task.sequence);
  const unsigned end = work.first + RowsFrom<kRows>(work.first, task.sequence);
  CopyOfQkv<kHead, kRows>(task, qkv, work.first, 0, queries);
  CopyOfOut<kHead, kRows>(task, d_out, work.first, gradients);

  Sums scores[kTiles][kKeys / 8];
  Sums d_scores[kTiles][kKeys / 8];
  const auto multiply = [&](const T* keys, const T* values) {
    MultiplyTransposed<kHead, kKeys>(RowsOfWarp<kHead, kTiles>(queries), keys, scores);
    MultiplyTransposed<kHead, kKeys>(RowsOfWarp<kHead, kTiles>(gradients), values, d_scores);
  };
  float log_sum[kStates];
  float delta[kStates] = {};
  {
    RowStates<kTiles> state;
    ForEachTileOfKeys(
        task, qkv, end, pairs, [&](unsigned first_key, const T* keys, const T* values) {
          if (!Sees<kWarpRows<kTiles>>(first_query, first_key)) return;
          multiply(keys, values);
          // Apart, so that a row that sees one key has a delta of exactly its d_score.
          ForEachSum(scores, [&](float& score, int, unsigned) { score *= task.scale() * kLog2E; });
          if (HidesAny<kKeys>(first_query, first_key)) {
            Hide(scores, first_query, first_key, -INFINITY);
          }
          float factor[kStates];
          Exponentiate(scores, 1, state, factor);
#pragma unroll
          for (int i = 0; i < kStates; ++i) delta[i] *= factor[i];
#pragma unroll
          for (int r = 0; r < kTiles; ++r) {
#pragma unroll
            for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
              for (int i = 0; i < 4; ++i) {
                const float p = scores[r][n].values[i];
                float& sum = delta[2 * r + i / 2];
                if (p > 0) sum = fmaf(p, d_scores[r][n].values[i], sum);
              }
            }
          }
        });
#pragma unroll
    for (int i = 0; i < kStates; ++i) {
      const float total = ReduceRow(state.sum[i], Plus());
      log_sum[i] = state.highest[i] + log2f(total);
      delta[i] = ReduceRow(delta[i], Plus()) / total;
      const unsigned row = RowOfLane(i);
      if (row >= row_limit || Lane() % 4 != 0) continue;
      statistics.log_sums[task.InStatistics(first_query + row)] = log_sum[i];
      statistics.deltas[task.InStatistics(first_query + row)] = delta[i];
    }
  }

  Sums sums[kTiles][kHead / 8];
  ForEachTileOfKeys(task, qkv, end, pairs, [&](unsigned first_key, const T* keys, const T* values) {
    if (!Sees<kWarpRows<kTiles>>(first_query, first_key)) return;
    multiply(keys, values);
#pragma unroll
    for (int r = 0; r < kTiles; ++r) {
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int at = 2 * r + i / 2;
          float& score = scores[r][n].values[i];
          const float p = Exp2(fmaf(score, task.scale() * kLog2E, -log_sum[at]));
          score = p * (d_scores[r][n].values[i] - delta[at]) * task.scale();
        }
      }
    }
    if (HidesAny<kKeys>(first_query, first_key)) Hide(scores, first_query, first_key, 0);
    MultiplyTile<kHead, kKeys>(scores, keys, sums);
  });
  StoreRows<kHead>(sums, task.head_size, row_limit, d_qkv,
                   [&](unsigned row) { return task.InQkv(first_query + row, 0); });
}

/// Shared memory: keys, values, pairs of queries and gradients of their outputs.
template <int kHead>
struct KeyGradient {
  // Two sums of kHead columns for a row: twice as many rows have no registers with 128.
  static constexpr int kTiles = kHead == 64 ? 2 : 1;
  static constexpr int kRows = kBlockRows<kTiles>;
  static constexpr int kQueries = 32;
};

/// d_v = Σ_queries p d_out, d_k = Σ_queries d_score q
template <int kHead, typename T>
__global__ void __launch_bounds__(kBlockThreads, 2)
    KeyGradientKernel(CudaAttentionShape shape, const T* qkv, const T* d_out,
                      CudaRowStatistics statistics, T* d_qkv) {
  constexpr int kTiles = KeyGradient<kHead>::kTiles;
  constexpr int kRows = KeyGradient<kHead>::kRows;
  constexpr int kQueries = KeyGradient<kHead>::kQueries;
  auto* const keys = reinterpret_cast<T*>(DynamicShared());
  T* const values = keys + kRows * kStride<kHead>;
  const TilePairs<kHead, kQueries, T> pairs{values + kRows * kStride<kHead>};
  __shared__ float log_sums[2][kQueries];
  __shared__ float deltas[2][kQueries];
  const AttentionWork work = KeysOfBlock<kRows>(shape);
  const AttentionTask task(shape, work.task);
  const unsigned first_key = work.first + threadIdx.x / kWarp * kWarpRows<kTiles>;
  CopyOfQkv<kHead, kRows>(task, qkv, work.first, 1, keys);
  CopyOfQkv<kHead, kRows>(task, qkv, work.first, 2, values);

  const auto copy = [&](unsigned first, unsigned turn) {
    CopyOfQkv<kHead, kQueries>(task, qkv, first, 0, pairs.First(turn));
    CopyOfOut<kHead, kQueries>(task, d_out, first, pairs.Second(turn));
    if (threadIdx.x >= kQueries) return;
    const bool inside = first + threadIdx.x < task.sequence;
    const uint64_t at = task.InStatistics(first + threadIdx.x);
    log_sums[turn % 2][threadIdx.x] = inside ? statistics.log_sums[at] : 0;
    deltas[turn % 2][threadIdx.x] = inside ? statistics.deltas[at] : 0;
  };
  Sums d_keys[kTiles][kHead / 8];
  Sums d_values[kTiles][kHead / 8];
  unsigned turn = 0;
  copy(work.first, turn);
  for (unsigned first_query = work.first; first_query < task.sequence;
       first_query += kQueries, ++turn) {
    WaitForCopies();
    __syncthreads();
    if (first_query + kQueries < task.sequence) copy(first_query + kQueries, turn + 1);
    // The last query sees most.
    if (first_query + kQueries <= first_key) continue;
    const T* const queries = pairs.First(turn);
    const T* const gradients = pairs.Second(turn);
    Sums scores[kTiles][kQueries / 8];
    Sums d_scores[kTiles][kQueries / 8];
    MultiplyTransposed<kHead, kQueries>(RowsOfWarp<kHead, kTiles>(keys), queries, scores);
    MultiplyTransposed<kHead, kQueries>(RowsOfWarp<kHead, kTiles>(values), gradients, d_scores);
    const bool hides = first_key + kWarpRows<kTiles> > first_query + 1;
#pragma unroll
    for (int r = 0; r < kTiles; ++r) {
#pragma unroll
      for (int n = 0; n < kQueries / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const unsigned column = n * 8 + ColumnOfSums() + i % 2;
          float& score = scores[r][n].values[i];
          float& d_score = d_scores[r][n].values[i];
          const float p = Exp2(fmaf(score, task.scale() * kLog2E, -log_sums[turn % 2][column]));
          const bool hidden = hides && first_key + RowOfLane(2 * r + i / 2) > first_query + column;
          d_score = hidden ? 0 : p * (d_score - deltas[turn % 2][column]) * task.scale();
          score = hidden ? 0 : p;
        }
      }
    }
    MultiplyTile<kHead, kQueries>(scores, gradients, d_values);
    MultiplyTile<kHead, kQueries>(d_scores, queries, d_keys);
  }
  const unsigned row_limit = RowsFrom<kWarpRows<kTiles>>(first_key, task.sequence);
  StoreRows<kHead>(d_keys, task.head_size, row_limit, d_qkv,
                   [&](unsigned row) { return task.InQkv(first_key + row, 1); });
  StoreRows<kHead>(d_values, task.head_size, row_limit, d_qkv,
                   [&](unsigned row) { return task.InQkv(first_key + row, 2); });
}

/// Returns the launch of a kernel whose blocks have this many rows, and this many in shared memory.
template <int kHead>
LaunchShape LaunchOf(const CudaAttentionShape& shape, uint64_t rows, size_t shared_rows) {
  return {.blocks = DivideUp(shape.sequence, rows) * shape.tasks,
          .threads = dim3(kBlockThreads),
          .shared = shared_rows * kStride<kHead> * sizeof(uint16_t)};
}

/// 32 rows a warp, or 16 where a block may not have the shared memory for more: with heads above 64
/// on GPUs whose blocks have 99 KiB (compute capability 8.6, 8.9 and 12).
template <int kHead, typename T>
void LaunchQueryGradient(device::CudaStream& stream, const CudaAttentionShape& shape, const T* qkv,
                         const T* d_out, const CudaRowStatistics& statistics, T* d_qkv) {
  const auto blocks_of = [&]<int kTiles>() {
    using Cut = QueryGradient<kTiles>;
    return LaunchOf<kHead>(shape, Cut::kRows, Cut::kSharedRows);
  };
  const auto launch = [&]<int kTiles>() {
    Launch(stream, "the gradient of queries", QueryGradientKernel<kHead, kTiles, T>,
           blocks_of.template operator()<kTiles>(), shape, qkv, d_out, statistics, d_qkv);
  };
  if constexpr (kHead > 64) {
    if (blocks_of.template operator()<2>().shared > shape.block_memory) {
      return launch.template operator()<1>();
    }
  }
  launch.template operator()<2>();
}

/// Calls f<kHead, T>() with the smallest padded size that holds the head, and the element.
template <typename F>
void WithHead(const CudaAttentionShape& shape, F f) {
  PENSTOCK_CHECK(shape.head_size <= kMaxFusedHead && shape.dtype != DType::kFloat32);
  const auto with = [&]<typename T>() {
    shape.head_size <= 64 ? f.template operator()<64, T>() : f.template operator()<128, T>();
  };
  shape.dtype == DType::kBFloat16 ? with.template operator()<BFloat16>()
                                  : with.template operator()<Float16>();
}

template <typename T>
const T* As(const std::byte* elements) {
  return reinterpret_cast<const T*>(elements);
}
template <typename T>
T* As(std::byte* elements) {
  return reinterpret_cast<T*>(elements);
}

}  // namespace

void CudaFusedAttentionForward(device::CudaStream& stream, const CudaAttentionShape& shape,
                               const std::byte* qkv, std::byte* out) {
  PENSTOCK_CHECK(shape.head_size % 8 != 0 || IsAligned(qkv));
  WithHead(shape, [&]<int kHead, typename T>() {
    using Cut = Forward<kHead>;
    Launch(stream, "attention", ForwardKernel<kHead, T>,
           LaunchOf<kHead>(shape, Cut::kRows, Cut::kRows + 4 * Cut::kKeys), shape, As<T>(qkv),
           As<T>(out));
  });
}

void CudaFusedAttentionBackward(device::CudaStream& stream, const CudaAttentionShape& shape,
                                const std::byte* qkv, const std::byte* d_out,
                                const CudaRowStatistics& statistics, std::byte* d_qkv) {
  PENSTOCK_CHECK(shape.head_size % 8 != 0 || (IsAligned(qkv) && IsAligned(d_out)));
  WithHead(shape, [&]<int kHead, typename T>() {
    LaunchQueryGradient<kHead>(stream, shape, As<T>(qkv), As<T>(d_out), statistics, As<T>(d_qkv));
    using Keys = KeyGradient<kHead>;
    Launch(stream, "the gradient of keys and values", KeyGradientKernel<kHead, T>,
           LaunchOf<kHead>(shape, Keys::kRows, 2 * Keys::kRows + 4 * Keys::kQueries), shape,
           As<T>(qkv), As<T>(d_out), statistics, As<T>(d_qkv));
  });
}

}  // namespace penstock::kernels
