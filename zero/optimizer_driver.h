// The optimizer's threads: block sums of arriving gradients, then the fused update, tile by tile.
//
// Threads take work as it becomes possible: a gradient tile that arrived in host memory (its block
// sums), else the next tile of the update order that the store has in memory. Every update runs in
// chunks that fit the cache: verify, update, checksum while the data is near.
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
#include "zero/update_scalars.h"

namespace penstock::zero {

class OptimizerDriver {
 public:
  /// `gradients`: of each tile, in host memory, of the dtype that the layout says. All arguments
  /// outlive the driver. Errors: kUnavailable, where the system gives fewer threads.
  static Result<std::unique_ptr<OptimizerDriver>> Create(
      const offload::ShardLayout& layout, std::vector<std::span<std::byte>> gradients,
      offload::TileStore& store, GradientNorm& norm, int threads, ActivityMeter* meter);
  /// Threads finish the tile they work on and end.
  ~OptimizerDriver();

  /// The gradient of a tile is in host memory. From any thread; short.
  void GradientArrived(offload::TileId tile) EXCLUDES(mutex_);
  /// From here to the step's end a tile's update begins as soon as its gradient is there, as those
  /// do now that are there already; but not one that is not finite.
  void UpdateOnArrival() EXCLUDES(mutex_);
  /// All gradients of the step were there and are not needed any more but by updates.
  void EndStep() EXCLUDES(mutex_);
  /// The scalars for updating tiles of `version`, before the first of these updates begins. Those
  /// of the version before stay.
  void SetScalars(uint64_t version, const UpdateScalars& scalars) EXCLUDES(mutex_);
  /// Errors: kNumeric where an update has made a weight that is not finite, naming the first tile
  /// with one, whichever thread saw its own first.
  Status CheckWeights() EXCLUDES(mutex_);

 private:
  OptimizerDriver(const offload::ShardLayout& layout, std::vector<std::span<std::byte>> gradients,
                  offload::TileStore& store, GradientNorm& norm, ActivityMeter* meter);
  /// The index-th of `count`.
  Status AddThread(int index, int count);
  void Run(Trace::Row row);
  void Wake(size_t tiles) EXCLUDES(mutex_);
  void SumBlocks(offload::TileId tile) EXCLUDES(mutex_);
  /// What a trace shows of work on a tile.
  void AddSpan(Trace::Row row, const char* what, offload::TileId tile, uint64_t version,
               Trace::Clock::time_point begin);
  /// Updates the tile in place, looks at its weights and hashes it; false if what was read is not
  /// what was expected.
  bool Update(const offload::TileUpdate& update, offload::TileHasher& before,
              offload::TileHasher& after);
  UpdateScalars ScalarsFor(const offload::TileUpdate& update) EXCLUDES(mutex_);

  const offload::ShardLayout& layout_;
  const std::vector<std::span<std::byte>> gradients_;
  offload::TileStore& store_;
  GradientNorm& norm_;
  ActivityMeter* meter_;

  Mutex mutex_;
  CondVar work_;
  std::deque<offload::TileId> arrived_ GUARDED_BY(mutex_);
  bool update_on_arrival_ GUARDED_BY(mutex_) = false;
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
