// The optimizer's threads: block sums of arriving gradients, then the fused update, tile by tile.
//
// Threads take work as it becomes possible: a weight that was read for the device (its checksum),
// else a gradient tile that arrived in host memory (its block sums), else the next tile of the
// update order that the store has in memory. Every update runs in
// chunks that fit the cache: verify, update, checksum while the data is near. Where updates take
// two passes, the first one is taken as an update is.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "base/activity.h"
#include "base/mutex.h"
#include "base/result.h"
#include "offload/layout.h"
#include "offload/tile_store.h"
#include "zero/gradient_norm.h"
#include "zero/states/tensor_figures.h"
#include "zero/states/trust_sums.h"
#include "zero/update_scalars.h"

namespace penstock::zero {

class OptimizerDriver {
 public:
  /// `gradients` are those of each tile, in host memory, with the dtype that the layout says.
  /// `trust`: where first passes leave their sums, if there are any. All arguments outlive the
  /// driver. Errors: kUnavailable if the system gives fewer threads.
  static Result<std::unique_ptr<OptimizerDriver>> Create(
      const offload::ShardLayout& layout, std::vector<std::span<std::byte>> gradients,
      offload::TileStore& store, GradientNorm& norm, TensorFigures& figures, int threads,
      ActivityMeter* meter, TrustBlocks* trust = nullptr);
  /// Lets the threads finish their tiles, and joins them.
  ~OptimizerDriver();

  /// Says that the gradients of trained tiles are in host memory. May be called from any thread;
  /// short.
  void GradientsArrived(offload::IdRange<offload::TileId> tiles) EXCLUDES(mutex_);
  /// Once both were called, and until the step's end, a tile's update begins as soon as its
  /// gradient is there, unless the gradient is not finite. Updates of tiles whose gradients are
  /// there already begin at once. AllowUpdates says that the step's forward is finite,
  /// PrepareUpdates that the state may be written.
  void AllowUpdates() EXCLUDES(mutex_);
  void PrepareUpdates() EXCLUDES(mutex_);
  /// Lets no further update begin in this step. Returns whether one has.
  bool StopUpdates() EXCLUDES(mutex_);
  bool updates_allowed() const EXCLUDES(mutex_);
  /// Says that all gradients of the step have arrived, and that only updates still need them.
  void EndStep() EXCLUDES(mutex_);
  /// Sets the scalars for updating tiles of `version`, before the first of these updates begins.
  /// Those of the version before stay.
  void SetScalars(uint64_t version, const UpdateScalars& scalars) EXCLUDES(mutex_);
  /// Errors: kNumeric if an update has made a weight that is not finite, naming the first tile with
  /// one, in the order of tiles.
  Status CheckWeights() EXCLUDES(mutex_);

 private:
  OptimizerDriver(const offload::ShardLayout& layout, std::vector<std::span<std::byte>> gradients,
                  offload::TileStore& store, GradientNorm& norm, TensorFigures& figures,
                  size_t threads, ActivityMeter* meter, TrustBlocks* trust);
  /// The index-th of `count`.
  Status AddThread(int index, int count);
  void Run(Trace::Row row);
  void Wake(size_t tiles) EXCLUDES(mutex_);
  /// The gradient that arrived first of those without block sums.
  std::optional<offload::TileId> TakeArrived() EXCLUDES(mutex_);
  void CheckRead(Trace::Row row, const offload::ReadWeight& read);
  void UpdateTile(Trace::Row row, offload::TileUpdate& update, offload::TileHasher& before,
                  offload::TileHasher& after);
  /// Wakes as many threads as there are tiles for.
  void NotifyFor(size_t tiles) REQUIRES(mutex_);
  /// What a thread keeps the figures of a tile's blocks in.
  struct BlockRoom {
    std::vector<float> largest = {};
    std::vector<uint32_t> nonfinite = {};
  };
  void SumBlocks(offload::TileId tile, BlockRoom& room) EXCLUDES(mutex_);
  /// Begins the updates of tiles that have arrived, if both conditions hold.
  void BeginSummed() EXCLUDES(mutex_);
  /// Adds a span for work on a tile to the trace, if there is one.
  void AddSpan(Trace::Row row, const char* what, offload::TileId tile, uint64_t version,
               Trace::Clock::time_point begin);
  /// Updates the tile in place, checks its weights and hashes it. Returns false if the bytes that
  /// were read are not the expected ones.
  bool Update(const offload::TileUpdate& update, offload::TileHasher& before,
              offload::TileHasher& after);
  /// Updates a part of a tile, and adds to the figures of the tensors that it cuts. `part`: index
  /// of the tile's next part; advances as parts are done.
  void UpdateParts(const offload::TileUpdate& update, const UpdateScalars& scalars, uint64_t begin,
                   uint64_t count, size_t& part);
  /// The first pass over a tile: reads it, and leaves the sums of its blocks. Returns as Update.
  bool SumForTrust(const offload::TileUpdate& update, offload::TileHasher& before);
  /// A part of that; `sums`: where the next ones go.
  void SumParts(const offload::TileUpdate& update, const UpdateScalars& scalars, uint64_t begin,
                uint64_t count, size_t& part, kernels::TrustSums*& sums);
  UpdateScalars ScalarsFor(const offload::TileUpdate& update) EXCLUDES(mutex_);

  const offload::ShardLayout& layout_;
  const std::vector<std::span<std::byte>> gradients_;
  offload::TileStore& store_;
  GradientNorm& norm_;
  TensorFigures& figures_;
  const size_t thread_count_;
  ActivityMeter* meter_;
  TrustBlocks* const trust_;  ///< none: updates take one pass

  mutable Mutex mutex_;
  CondVar work_;
  std::deque<offload::TileId> arrived_ GUARDED_BY(mutex_);
  bool allowed_ GUARDED_BY(mutex_) = false;
  bool prepared_ GUARDED_BY(mutex_) = false;
  bool updating_ GUARDED_BY(mutex_) = false;
  std::vector<offload::TileId> summed_ GUARDED_BY(mutex_);  ///< in this step, updates not begun
  struct VersionScalars {
    uint64_t version = 0;
    UpdateScalars scalars;
  };
  std::array<VersionScalars, 2> scalars_ GUARDED_BY(mutex_);      ///< at version modulo 2
  std::optional<offload::TileId> not_finite_ GUARDED_BY(mutex_);  ///< the first of such tiles
  uint64_t wakes_ GUARDED_BY(mutex_) =
      0;  ///< counts Wake(), so that none is lost between look and wait
  bool stop_ GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace penstock::zero
