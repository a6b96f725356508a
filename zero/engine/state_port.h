// The states of a training as its steps act on them: the half of an engine (zero/engine/engine.h)
// that knows where gradients and states are, updates and commits them, and knows no device.
//
// zero/session/session.h checks the calls, counts, and decides. The states carry out these calls,
// in this order:
//   BeginStep
//     the gradient of each module: EndHostGradients, or through the port of the device
//     AllowUpdates, from any thread, once the forward's loss is known to be finite
//   FinishGradients, and then one of UpdateStep and SkipStep; or, instead of both, DropStep
// Updates continue under the next step: the first use of a module in it waits for the update of
// that module's tiles and of no others. If updates do not need all gradients (see StartOfUpdates),
// a tile is updated as soon as updates are allowed and its own gradient is there.
//
// Threads: AllowUpdates from any thread, all else from one.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "offload/layout.h"
#include "zero/engine/engine_options.h"
#include "zero/gradient_norm.h"
#include "zero/model.h"
#include "zero/states/tensor_figures.h"
#include "zero/states/tile_fill.h"
#include "zero/states/train_state.h"
#include "zero/step_note.h"

namespace penstock::zero {

/// Counters since the engine was made. Bytes of initialisation and commits are counted separately.
struct EngineCounters {
  uint64_t nvme_read_bytes = 0;
  uint64_t nvme_write_bytes = 0;
  uint64_t nvme_init_bytes = 0;
  uint64_t nvme_commit_bytes = 0;
  uint64_t nvme_verify_bytes = 0;  ///< read back of commits; in no other number
  uint64_t evictions = 0;  ///< device copies of modules and host copies of tiles that were evicted
  uint64_t updates = 0;    ///< tiles updated
};

/// A tile's gradient in host memory: of the mean loss over the step's tokens, times its loss scale,
/// rounded to the dtype of the tile's weight. `values` has GradientBytes of the tile.
struct HostGradient {
  offload::TileId tile{};
  std::span<std::byte> values;
};

class StatePort {
 public:
  virtual ~StatePort() = default;

  // One of these comes before the first step.
  /// Sets every tile, on StartThreads() threads.
  virtual Status FillTiles(const TileFill& fill) = 0;
  /// The two halves of FillTiles, for a caller that has tiles one by one: every tile is filled
  /// once, and then EndFill is called.
  virtual Status FillTile(offload::TileId tile, const TileFill& fill) = 0;
  virtual Status EndFill() = 0;
  /// Takes the tiles as they are in the newest commit of the files in EngineOptions::adopt, without
  /// moving those that live on nvme, and returns the TrainState of that commit. Errors: of reads;
  /// kCorruption, naming the tile.
  virtual Result<TrainState> Adopt() = 0;

  /// What the engine was made with.
  virtual const EngineOptions& options() const = 0;
  virtual const offload::ShardLayout& layout() const = 0;

  // A step.
  /// Between steps: sets the order of use that the next steps are planned for.
  virtual void SetOrder(const StepOrder& order) = 0;
  /// Says that the step that begins next is the last: nothing is read ahead for another.
  virtual void ExpectLastStep() {}
  /// Says which step of the run begins next, for messages.
  virtual void NumberStep(uint64_t /*step*/) {}
  /// Begins a step. Its update has learning rate `lr` and is number `t` (from 1) of the rule.
  virtual Status BeginStep(double lr, uint64_t t) = 0;
  /// Sets the hyperparameters and learning rates of all groups, from the update of this step on,
  /// and the learning rate of this step. The groups are those of the model. Precondition: updates
  /// begin when the step ends.
  virtual void SetGroups(std::vector<GroupSpec> groups, double lr) = 0;
  /// For gradients that the caller has in host memory: BeginHostGradients returns where to write
  /// those of a module; EndHostGradients says that they are written. The module's last update has
  /// ended. Errors: kUnavailable if no host memory is planned for gradients.
  virtual Result<std::vector<HostGradient>> BeginHostGradients(ModuleId module) = 0;
  virtual Status EndHostGradients(ModuleId module) = 0;
  /// Says that updates of this step may begin, because its forward was finite.
  virtual void AllowUpdates() = 0;
  /// Sets what FinishGradients tells the other ranks.
  virtual void SetNote(const StepNote&) {}
  /// To be called when every gradient of the step was given: waits for them and returns their norm.
  virtual Result<GradientNorm::Value> FinishGradients() = 0;
  /// Returns the figures of all ranks that the last FinishGradients has found: of the gradients,
  /// and of the update before, if there was one since the last FinishGradients. Empty if the engine
  /// has none.
  virtual const StepFigures& figures() const {
    static const StepFigures kNone;
    return kNone;
  }
  /// Returns what the last FinishGradients told, by rank; empty with one rank.
  virtual std::span<const StepNote> notes() const { return {}; }
  /// Updates every tile, with its gradient times `grad_scale`, unless it was updated with its
  /// gradient. With overlap off, returns after the updates.
  virtual Status UpdateStep(double grad_scale) = 0;
  /// Ends a step without an update.
  virtual Status SkipStep() = 0;
  /// Ends a step that may be incomplete, without an update. Errors: kUnavailable if tiles were
  /// updated with their gradients already; then no step can follow.
  virtual Status DropStep() = 0;
  /// Waits for all updates and write-backs, and returns the first failure.
  virtual Status Drain() = 0;

  /// Begins to commit the state as it is between two steps, together with `state`. Once its updates
  /// are written, `first` runs (on any thread), parts that do not live on the drive are written,
  /// and everything is synchronised; then the record follows. The next step may begin meanwhile;
  /// FinishGradients, Drain and another commit come after FinishCommit. A state in which an
  /// update has made a weight that is not finite, or the last one has destroyed weights
  /// (FirstDestroyed in zero/states/tensor_figures.h), is not committed: kNumeric.
  virtual void BeginCommit(const TrainState& state, std::function<Status()> first) = 0;
  /// For `first` of a commit whose text names a caller's file: writes that file, durably
  /// (offload::StateFile::WriteCallerFile).
  virtual Status WriteCallerFile(std::string_view content) = 0;
  /// Waits for the commit that was begun, if any. Afterwards it is durable; if it failed, the
  /// engine has failed, too, unless `first` had no space (kOutOfSpace).
  virtual Status FinishCommit() = 0;
  /// Takes the newest commit back (offload::StateFile::TakeBack). No step and no commit follows.
  virtual Status TakeBackCommit() = 0;
  /// Checks that the newest commit is on the drives (offload::StateFile::CheckCommit), also after a
  /// failure. Not between BeginCommit and FinishCommit.
  virtual Status CheckCommit() const = 0;
  /// Has `read` look at both parts of a tile, in host memory, as the updates so far leave them.
  /// Errors: of reads; kCorruption; of the device; of `read`.
  using TileReader =
      std::function<Status(std::span<const std::byte> weight, std::span<const std::byte> record)>;
  virtual Status ReadTile(offload::TileId tile, const TileReader& read) = 0;

  virtual EngineCounters counters() const = 0;
  virtual Bytes host_peak() const = 0;
  virtual const std::string& aio_engine() const = 0;
  /// Return the state's files by index of their path, and its UUID as text.
  virtual const std::vector<std::string>& state_paths() const = 0;
  virtual const std::string& state_uuid() const = 0;
  /// Returns lines to show the user once: which I/O engine was chosen and why, and how the budgets
  /// were spent.
  virtual const std::vector<std::string>& notices() const = 0;
};

}  // namespace penstock::zero
