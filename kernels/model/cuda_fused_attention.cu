// The fused attention kernels in bf16 and fp16.
//
// A block of four warps has 64 rows: of queries in the forward pass, the statistics and the
// gradients of queries; of keys in the gradients of keys and values. Each warp has 16 of them, for
// the whole size of a head (padded with zeros to kHead), and the block goes through tiles of the
// other side in order. Scores exist for one tile at a time, in registers; exponentials are to the
// base 2. Rows of the tiles beyond the sequence are zeros. Sums go in an order that depends on
// shapes alone.
#include "kernels/model/cuda_fused_attention.h"

#include "kernels/cuda_elements.cuh"
#include "kernels/cuda_launch.cuh"
#include "kernels/cuda_reduce.cuh"
#include "kernels/model/cuda_attention_tile.cuh"
#include "kernels/model/cuda_mma.cuh"

namespace penstock::kernels {
namespace {

constexpr float kLog2E = 1.4426950408889634f;

/// One head of one sequence: its rows in qkv, and in out.
struct Task {
  uint64_t index;
  uint64_t width;
  uint64_t first_row;
  uint64_t column;
  unsigned sequence;
  unsigned head_size;

  __device__ Task(const CudaAttentionShape& shape, uint64_t task)
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
  /// Scores to exponents of 2.
  __device__ float scale() const { return 1 / sqrtf(static_cast<float>(head_size)); }
};

/// The online softmax of the lane's two rows.
struct RowState {
  float highest[2] = {-INFINITY, -INFINITY};  ///< of the scaled scores so far
  float sum[2] = {0, 0};                      ///< the lane's part of the sums of exponentials
};

/// Turns scaled scores into exponentials relative to the rows' new highest scores; factor: what
/// earlier exponentials are to be multiplied with.
template <int kTiles>
__device__ void Exponentiate(Sums (&scores)[kTiles], RowState& state, float (&factor)[2]) {
  float highest[2] = {state.highest[0], state.highest[1]};
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) highest[i / 2] = fmaxf(highest[i / 2], scores[n].values[i]);
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    highest[r] = ReduceRow(highest[r], Maximum());
    factor[r] = exp2f(state.highest[r] - highest[r]);
    state.highest[r] = highest[r];
    state.sum[r] *= factor[r];
  }
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float& value = scores[n].values[i];
      value = exp2f(value - highest[i / 2]);
      state.sum[i / 2] += value;
    }
  }
}

/// Which block of 64 rows and which task a thread block has; those with the most work come first.
struct Work {
  unsigned first;
  uint64_t task;
};
__device__ Work QueriesOfBlock(const CudaAttentionShape& shape) {
  const auto blocks = static_cast<unsigned>((shape.sequence + kBlockRows - 1) / kBlockRows);
  const auto turn = static_cast<unsigned>(blockIdx.x / shape.tasks);
  return {(blocks - 1 - turn) * kBlockRows, blockIdx.x % shape.tasks};
}
__device__ Work KeysOfBlock(const CudaAttentionShape& shape) {
  return {static_cast<unsigned>(blockIdx.x / shape.tasks) * kBlockRows, blockIdx.x % shape.tasks};
}

/// Keys and values of a tile, from `first_key` on. Waits until nobody reads the tiles any more.
template <int kHead, int kKeys, typename T>
__device__ void LoadKeysAndValues(const Task& task, const T* qkv, unsigned first_key, T* keys,
                                  T* values) {
  const unsigned rows = RowsFrom<kKeys>(first_key, task.sequence);
  __syncthreads();
  LoadTile<kHead, kKeys>(qkv + task.InQkv(first_key, 1), 3 * task.width, rows, task.head_size,
                         keys);
  LoadTile<kHead, kKeys>(qkv + task.InQkv(first_key, 2), 3 * task.width, rows, task.head_size,
                         values);
  __syncthreads();
}

/// Scores of the warp's queries to exponents of 2; those of keys behind the query to none.
template <int kTiles>
__device__ void ScaleVisible(Sums (&scores)[kTiles], float scale, unsigned first_query,
                             unsigned first_key) {
  ForEachSum(scores, [&](float& score, unsigned row, unsigned column) {
    score = first_key + column > first_query + row ? -INFINITY : score * scale;
  });
}

template <int kHead, typename T>
__global__ void __launch_bounds__(kBlockThreads)
    ForwardKernel(CudaAttentionShape shape, const T* qkv, T* out) {
  constexpr int kKeys = 64;
  __shared__ __align__(16) T keys[kKeys * kStride<kHead>];
  __shared__ __align__(16) T values[kKeys * kStride<kHead>];
  const Work work = QueriesOfBlock(shape);
  const Task task(shape, work.task);
  const unsigned first_query = work.first + threadIdx.x / kWarp * 16;  // of the warp
  const float scale = task.scale() * kLog2E;

  Left queries[kHead / 16];
  LoadTile<kHead, kBlockRows>(qkv + task.InQkv(work.first, 0), 3 * task.width,
                              RowsFrom<kBlockRows>(work.first, task.sequence), task.head_size,
                              keys);
  __syncthreads();
  LoadRows<kHead>(keys, queries);

  Sums sums[kHead / 8];
  RowState state;
  for (unsigned first_key = 0; first_key <= work.first; first_key += kKeys) {
    LoadKeysAndValues<kHead, kKeys>(task, qkv, first_key, keys, values);
    Sums scores[kKeys / 8];
    MultiplyTransposed<kHead, kKeys>(queries, keys, scores);
    ScaleVisible(scores, scale, first_query, first_key);
    float factor[2];
    Exponentiate(scores, state, factor);
    ForEachSum(sums, [&](float& sum, unsigned row, unsigned) {
      sum *= factor[row == RowOfSums() ? 0 : 1];
    });
    MultiplyTile<kHead, kKeys>(scores, values, sums);
  }

  float total[2];
  for (int r = 0; r < 2; ++r) total[r] = ReduceRow(state.sum[r], Plus());
  ForEachSum(sums,
             [&](float& sum, unsigned row, unsigned) { sum /= total[row == RowOfSums() ? 0 : 1]; });
  StoreRows<kHead>(sums, task.head_size, RowsFrom<16>(first_query, task.sequence), out,
                   [&](unsigned row) { return task.InOut(first_query + row); });
}

/// First the statistics of the rows, with delta = Σ_keys p (d_out vᵀ), then the gradient:
/// d_q = Σ_keys d_score k, d_score = p (d_out vᵀ − delta) scale.
template <int kHead, typename T>
__global__ void __launch_bounds__(kBlockThreads)
    QueryGradientKernel(CudaAttentionShape shape, const T* qkv, const T* d_out,
                        CudaRowStatistics statistics, T* d_qkv) {
  constexpr int kKeys = 32;
  __shared__ __align__(16) T tile[kBlockRows * kStride<kHead>];
  T* const keys = tile;
  T* const values = tile + kKeys * kStride<kHead>;
  const Work work = QueriesOfBlock(shape);
  const Task task(shape, work.task);
  const unsigned first_query = work.first + threadIdx.x / kWarp * 16;
  const unsigned query_rows = RowsFrom<kBlockRows>(work.first, task.sequence);

  Left queries[kHead / 16];
  Left gradients[kHead / 16];
  LoadTile<kHead, kBlockRows>(qkv + task.InQkv(work.first, 0), 3 * task.width, query_rows,
                              task.head_size, tile);
  __syncthreads();
  LoadRows<kHead>(tile, queries);
  __syncthreads();
  LoadTile<kHead, kBlockRows>(d_out + task.InOut(work.first), task.width, query_rows,
                              task.head_size, tile);
  __syncthreads();
  LoadRows<kHead>(tile, gradients);

  const unsigned end = work.first + query_rows;
  RowState state;
  float delta[2] = {0, 0};
  for (unsigned first_key = 0; first_key < end; first_key += kKeys) {
    LoadKeysAndValues<kHead, kKeys>(task, qkv, first_key, keys, values);
    Sums scores[kKeys / 8];
    Sums d_scores[kKeys / 8];
    MultiplyTransposed<kHead, kKeys>(queries, keys, scores);
    MultiplyTransposed<kHead, kKeys>(gradients, values, d_scores);
    ScaleVisible(scores, task.scale() * kLog2E, first_query, first_key);
    float factor[2];
    Exponentiate(scores, state, factor);
    for (int r = 0; r < 2; ++r) delta[r] *= factor[r];
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float p = scores[n].values[i];
        if (p > 0) delta[i / 2] = fmaf(p, d_scores[n].values[i], delta[i / 2]);
      }
    }
  }
  const unsigned row_limit = RowsFrom<16>(first_query, task.sequence);
  float log_sum[2];
  for (int r = 0; r < 2; ++r) {
    const float total = ReduceRow(state.sum[r], Plus());
    log_sum[r] = state.highest[r] + log2f(total);
    delta[r] = ReduceRow(delta[r], Plus()) / total;
    const unsigned row = RowOfSums() + r * 8;
    if (row >= row_limit || Lane() % 4 != 0) continue;
    statistics.log_sums[task.InStatistics(first_query + row)] = log_sum[r];
    statistics.deltas[task.InStatistics(first_query + row)] = delta[r];
  }

  Sums sums[kHead / 8];
  for (unsigned first_key = 0; first_key < end; first_key += kKeys) {
    LoadKeysAndValues<kHead, kKeys>(task, qkv, first_key, keys, values);
    Sums scores[kKeys / 8];
    Sums d_scores[kKeys / 8];
    MultiplyTransposed<kHead, kKeys>(queries, keys, scores);
    MultiplyTransposed<kHead, kKeys>(gradients, values, d_scores);
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const unsigned query = first_query + RowOfSums() + i / 2 * 8;
        const unsigned key = first_key + n * 8 + ColumnOfSums() + i % 2;
        const float p = exp2f(scores[n].values[i] * (task.scale() * kLog2E) - log_sum[i / 2]);
        const float d_score = p * (d_scores[n].values[i] - delta[i / 2]) * task.scale();
        scores[n].values[i] = key > query ? 0 : d_score;
      }
    }
    MultiplyTile<kHead, kKeys>(scores, keys, sums);
  }
  StoreRows<kHead>(sums, task.head_size, row_limit, d_qkv,
                   [&](unsigned row) { return task.InQkv(first_query + row, 0); });
}

/// d_v = Σ_queries p d_out, d_k = Σ_queries d_score q
template <int kHead, typename T>
__global__ void __launch_bounds__(kBlockThreads)
    KeyGradientKernel(CudaAttentionShape shape, const T* qkv, const T* d_out,
                      CudaRowStatistics statistics, T* d_qkv) {
  constexpr int kQueries = 32;
  constexpr unsigned kBlockTile = kBlockRows * kStride<kHead>;
  constexpr unsigned kQueryTile = kQueries * kStride<kHead>;
  auto* const keys = reinterpret_cast<T*>(DynamicShared());
  T* const values = keys + kBlockTile;
  T* const queries = values + kBlockTile;
  T* const gradients = queries + kQueryTile;
  __shared__ float log_sums[kQueries];
  __shared__ float deltas[kQueries];
  const Work work = KeysOfBlock(shape);
  const Task task(shape, work.task);
  const unsigned first_key = work.first + threadIdx.x / kWarp * 16;
  const unsigned key_rows = RowsFrom<kBlockRows>(work.first, task.sequence);

  LoadTile<kHead, kBlockRows>(qkv + task.InQkv(work.first, 1), 3 * task.width, key_rows,
                              task.head_size, keys);
  LoadTile<kHead, kBlockRows>(qkv + task.InQkv(work.first, 2), 3 * task.width, key_rows,
                              task.head_size, values);

  Sums d_keys[kHead / 8];
  Sums d_values[kHead / 8];
  for (unsigned first_query = work.first; first_query < task.sequence; first_query += kQueries) {
    const unsigned rows = RowsFrom<kQueries>(first_query, task.sequence);
    __syncthreads();
    LoadTile<kHead, kQueries>(qkv + task.InQkv(first_query, 0), 3 * task.width, rows,
                              task.head_size, queries);
    LoadTile<kHead, kQueries>(d_out + task.InOut(first_query), task.width, rows, task.head_size,
                              gradients);
    if (threadIdx.x < kQueries) {
      const bool inside = threadIdx.x < rows;
      const uint64_t at = task.InStatistics(first_query + threadIdx.x);
      log_sums[threadIdx.x] = inside ? statistics.log_sums[at] : 0;
      deltas[threadIdx.x] = inside ? statistics.deltas[at] : 0;
    }
    __syncthreads();
    Sums scores[kQueries / 8];
    Sums d_scores[kQueries / 8];
    {
      Left left[kHead / 16];
      LoadRows<kHead>(keys, left);
      MultiplyTransposed<kHead, kQueries>(left, queries, scores);
      LoadRows<kHead>(values, left);
      MultiplyTransposed<kHead, kQueries>(left, gradients, d_scores);
    }
#pragma unroll
    for (int n = 0; n < kQueries / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const unsigned column = n * 8 + ColumnOfSums() + i % 2;
        const unsigned key = first_key + RowOfSums() + i / 2 * 8;
        const bool hidden = key > first_query + column || column >= rows;
        const float p = exp2f(scores[n].values[i] * (task.scale() * kLog2E) - log_sums[column]);
        const float d_score = p * (d_scores[n].values[i] - deltas[column]) * task.scale();
        scores[n].values[i] = hidden ? 0 : p;
        d_scores[n].values[i] = hidden ? 0 : d_score;
      }
    }
    MultiplyTile<kHead, kQueries>(scores, gradients, d_values);
    MultiplyTile<kHead, kQueries>(d_scores, queries, d_keys);
  }
  const unsigned row_limit = RowsFrom<16>(first_key, task.sequence);
  StoreRows<kHead>(d_keys, task.head_size, row_limit, d_qkv,
                   [&](unsigned row) { return task.InQkv(first_key + row, 1); });
  StoreRows<kHead>(d_values, task.head_size, row_limit, d_qkv,
                   [&](unsigned row) { return task.InQkv(first_key + row, 2); });
}

/// Bytes of dynamic shared memory of KeyGradientKernel.
template <int kHead>
constexpr size_t kKeyGradientShared = 2 * (kBlockRows + 32) * kStride<kHead> * sizeof(uint16_t);

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

uint64_t BlocksOf(const CudaAttentionShape& shape) {
  return DivideUp(shape.sequence, kBlockRows) * shape.tasks;
}

}  // namespace

void CudaFusedAttentionForward(device::CudaStream& stream, const CudaAttentionShape& shape,
                               const std::byte* qkv, std::byte* out) {
  PENSTOCK_CHECK(shape.head_size % 8 != 0 || IsAligned(qkv));
  WithHead(shape, [&]<int kHead, typename T>() {
    Launch(stream, "attention", ForwardKernel<kHead, T>, {BlocksOf(shape), dim3(kBlockThreads)},
           shape, As<T>(qkv), As<T>(out));
  });
}

void CudaFusedAttentionBackward(device::CudaStream& stream, const CudaAttentionShape& shape,
                                const std::byte* qkv, const std::byte* d_out,
                                const CudaRowStatistics& statistics, std::byte* d_qkv) {
  PENSTOCK_CHECK(shape.head_size % 8 != 0 || (IsAligned(qkv) && IsAligned(d_out)));
  const LaunchShape launch{BlocksOf(shape), dim3(kBlockThreads)};
  WithHead(shape, [&]<int kHead, typename T>() {
    Launch(stream, "the gradient of queries", QueryGradientKernel<kHead, T>, launch, shape,
           As<T>(qkv), As<T>(d_out), statistics, As<T>(d_qkv));
    LaunchShape with_shared = launch;
    with_shared.shared = kKeyGradientShared<kHead>;
    Launch(stream, "the gradient of keys and values", KeyGradientKernel<kHead, T>, with_shared,
           shape, As<T>(qkv), As<T>(d_out), statistics, As<T>(d_qkv));
  });
}

}  // namespace penstock::kernels
