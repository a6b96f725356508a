// States behind a model that a caller computes: what the two homes of such states have in common,
// in host memory or on the drive (zero/state_engine.h) and on the device (zero/resident_engine.h).
//
// Units are filled tile by tile, gradients are given whole and rounded, and each update has scalars
// of the caller's. How weights and gradients come and go is a matter of each home.
//
// Threads: one.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "offload/layout.h"
#include "zero/engine.h"
#include "zero/model.h"
#include "zero/state_io.h"
#include "zero/tile_fill.h"
#include "zero/train_state.h"

namespace penstock::zero {

class CallerStates {
 public:
  virtual ~CallerStates() = default;

  // See zero/engine.h.
  virtual Status FillTiles(const TileFill& fill) = 0;
  /// The two halves of FillTiles, for a caller that has tiles one by one: every tile is filled
  /// once, and then EndFill is called.
  virtual Status FillTile(offload::TileId tile, const TileFill& fill) = 0;
  virtual Status EndFill() = 0;
  virtual Result<TrainState> Adopt() = 0;
  virtual Status BeginStep(double lr, uint64_t t) = 0;
  /// Sets the hyperparameters and learning rates of all groups from the next update on. The groups
  /// are those of the model.
  virtual void SetGroups(std::vector<GroupSpec> groups) = 0;
  virtual Status SkipStep() = 0;
  virtual Status Drain() = 0;
  virtual void BeginCommit(const TrainState& state, std::function<Status()> first) = 0;
  virtual Status FinishCommit() = 0;
  virtual EngineCounters counters() const = 0;

  /// Replaces the end of a step of which the gradients of only so many tiles were given: drops
  /// those. Errors: kUnavailable if tiles were updated already; of the device.
  virtual Status DropGradients(size_t tiles) = 0;
  /// Has `read` look at both parts of a tile, in host memory, as the updates so far leave them.
  /// Errors: of reads; kCorruption; of the device; of `read`.
  virtual Status ReadTile(offload::TileId tile,
                          const std::function<Status(std::span<const std::byte> weight,
                                                     std::span<const std::byte> record)>& read) = 0;
  /// Returns the host memory that drives and devices read and write.
  virtual std::span<std::byte> memory() = 0;

  virtual const StateIo& io() const = 0;
  virtual Bytes host_peak() const = 0;
};

}  // namespace penstock::zero
