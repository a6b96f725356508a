// What a placement does in a step. An engine knows where weights, gradients and states are, and
// updates them.
//
// An engine is the back end of zero/session.h, which is what a trainer uses. The session checks the
// calls, counts, and decides. The engine carries out these calls, in this order:
//   BeginStep
//     for each use: Acquire(module) … work on compute_stream() … Release(module)
//     for each module with gradients: Gradients(module) … ReduceGradients(module)
//     Losses(…) … ShareLosses(…), where the losses are on the device
//     AllowUpdates, from any thread, once the forward's loss is known to be finite
//   FinishGradients, and then one of UpdateStep and SkipStep; or, instead of both, DropStep
// Updates continue under the next step: its Acquire of a module waits for the update of that
// module's tiles and of no others. If updates do not need all gradients (see StartOfUpdates), a
// tile is updated as soon as updates are allowed and its own gradient is there.
//
// With several ranks, each holds its share of everything (offload::ShardLayout), and all engines
// make the same calls in the same order. Every rank computes with whole modules, which the engine
// gathers, and gives whole gradients, of which each rank gets its share.
//
// Owns the streams, the slab, the state and the optimizer threads; borrows device, operators and
// communicator.
// Threads: AllowUpdates from any thread, all else from one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/activity.h"
#include "base/ledger.h"
#include "base/result.h"
#include "comm/world.h"
#include "config/config.h"
#include "device/device.h"
#include "offload/commit_agreement.h"
#include "offload/layout.h"
#include "zero/gradient_norm.h"
#include "zero/model.h"
#include "zero/step_note.h"
#include "zero/tensor_figures.h"
#include "zero/tile_fill.h"
#include "zero/train_state.h"

namespace penstock::aio {
class Engine;
class File;
}  // namespace penstock::aio

namespace penstock::comm {
class Communicator;
}  // namespace penstock::comm

namespace penstock::kernels {
class StateOperators;
}  // namespace penstock::kernels

namespace penstock::zero {

/// The least memory that the engine works with; the trainer adds its own (activations, scratch).
struct MemoryMinimum {
  Bytes device_minimum;
  Bytes host_minimum;
  std::string device_sum;  ///< "parameters 6.00 MiB + gradients …", for messages
  std::string host_sum;
};

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

struct EngineOptions {
  ModelSpec model;
  config::Config config;  ///< homes, tile size, optimizer, budgets, aio, overlap, durability
  /// Where the files of the state go: nvme_paths, or RUN when no home is nvme.
  std::vector<std::string> state_folders;
  /// Files of a committed state to continue in place (see Engine::Adopt), in the state_folders and
  /// in the order of their paths; none: a new state.
  std::vector<std::string> adopt;
  /// The commit from which the run continues: the newest that is whole, on which several ranks have
  /// agreed. None: the newest.
  std::optional<offload::CommitName> adopt_at;
  std::optional<offload::Uuid> state_uuid;  ///< of a new state; none: a random one
  /// Whether the first commit is verified whatever `config` says of commits: for a state that is
  /// moved, as its old files are removed after that commit.
  bool verify_first_commit = false;
  uint64_t seed = 0;      ///< of stochastic rounding
  Bytes host_memory;      ///< limit of all that is charged to it
  Bytes device_reserved;  ///< device bytes that others take (activations, scratch)
  Bytes host_reserved;    ///< bytes of host_memory that others take (activation checkpoints)
  /// The caller's stream, on which it enqueues its kernels; it outlives the engine. None: the
  /// engine makes one.
  device::Stream* compute_stream = nullptr;
  /// To the other ranks; outlives the engine. None: this is the only rank.
  comm::Communicator* communicator = nullptr;
  /// With several ranks: the number of this start of the run, the same on all ranks. Their commits
  /// name it.
  uint64_t commit_session = 0;
  /// Called by the thread that makes a commit, once this rank's is durable. Returns when those of
  /// all ranks are; until then the commit before it stands. None: no other rank makes any.
  std::function<Status(uint64_t step)> vote;
  ActivityMeter* meter = nullptr;
  /// Told in one line when a drive does not answer, and when it does again, and of what was lost in
  /// a file of the state and is there twice; any thread. If empty, nothing is looked at or said.
  std::function<void(const std::string& line)> warn;
  /// With several ranks: told what the calling thread does now, for messages, as in "waits for
  /// weights of h.3". Cheap. None: nobody asks.
  std::function<void(std::string_view what)> doing;
  /// With several ranks: told of each piece of a commit that was written or read back, for which
  /// other ranks may wait (comm::Job::Progressed). Cheap; any thread. None: nobody asks.
  std::function<void()> progressed;

  // Tests may replace these: the function that makes the I/O engine of a path, and the one that
  // measures drives for the paths' shares. None: aio::CreateEngine and offload::MeasureSpeed.
  std::function<Result<std::unique_ptr<aio::Engine>>(size_t path, const aio::EngineOptions& options,
                                                     std::string* notice)>
      create_io;
  std::function<Result<double>(aio::Engine& engine, const aio::File& file, Bytes size)> probe;

  comm::World world() const;
};

class Engine {
 public:
  /// Returns the sums for a model and a config, without allocating anything. Precondition:
  /// WithOrder (zero/use_order.h) accepts the model.
  static MemoryMinimum MinimumMemory(const ModelSpec& model, const config::Config& config,
                                     const comm::World& world = {});

  /// Creates the slab, the state (preallocated) and the threads. The model must have an order of
  /// use. Errors: kBudget with the sum and the smallest limit that works; those of the state and
  /// the I/O engines.
  static Result<std::unique_ptr<Engine>> Create(EngineOptions options, device::Device& device,
                                                kernels::StateOperators& operators);
  /// Stops the optimizer threads after the tiles they work on; what was not committed is lost.
  virtual ~Engine() = default;

  // One of these two comes before the first step.
  /// Sets every tile, on StartThreads() threads.
  virtual Status FillTiles(const TileFill& fill) = 0;
  /// Takes the tiles as they are in the newest commit of the files in EngineOptions::adopt, without
  /// moving those that live on nvme, and returns the TrainState of that commit. Errors: of reads;
  /// kCorruption, naming the tile.
  virtual Result<TrainState> Adopt() = 0;

  /// What the engine was made with.
  virtual const EngineOptions& options() const = 0;
  virtual const offload::ShardLayout& layout() const = 0;
  virtual device::Stream& compute_stream() = 0;

  // A step.
  /// Between steps: sets the order of use that the next steps are planned for.
  virtual void SetOrder(const StepOrder& order) = 0;
  /// Says that the step that begins next is the last: nothing is read ahead for another.
  virtual void ExpectLastStep() {}
  /// Says which step of the run begins next, for messages.
  virtual void NumberStep(uint64_t /*step*/) {}
  /// Begins a step. Its update has learning rate `lr` and is number `t` (from 1) of the rule.
  virtual Status BeginStep(double lr, uint64_t t) = 0;
  /// Returns the module's flat parameters on the device; tensors lie at layout offsets. Work
  /// enqueued on compute_stream() after the call sees the current version. Any order is served; the
  /// planned order is served without waiting. Errors: of reads and updates that the module depends
  /// on; kInvalidArgument if more modules are held than there are slots.
  virtual Result<const std::byte*> Acquire(ModuleId module) = 0;
  /// Ends a use of the module: kernels enqueued so far are the last that read it.
  virtual void Release(ModuleId module) = 0;
  /// Returns where kernels add the module's fp32 gradient on the device,
  /// [ModelLayout::TrainedElements]; zeros and sums of this step's micro-batches so far (see
  /// zero/gradient_sums.h). Valid until AddGradients or ReduceGradients. Errors: kInvalidArgument
  /// if another repeated module has it.
  virtual Result<float*> Gradients(ModuleId module) = 0;
  /// Says that the gradient of a micro-batch is complete on compute_stream().
  virtual Status AddGradients(ModuleId module) = 0;
  /// Says that the gradients of all micro-batches are. Their sums are rounded once and copied to
  /// where updates read them, and block sums are taken.
  virtual Status ReduceGradients(ModuleId module) = 0;
  /// Returns where kernels add the losses of this rank's micro-batches on the device,
  /// [micro_batches], zeroed at the first call in a step. All calls in a step, and those of the
  /// other ranks, say as many, and no more than config.gradient_accumulation_steps.
  virtual double* Losses(uint64_t micro_batches) = 0;
  /// Says that they are complete on compute_stream(). See zero/step_losses.h.
  virtual void ShareLosses(std::function<void(std::span<const double> losses)> arrived) = 0;
  /// These replace the last two for gradients that the caller has in host memory:
  /// BeginHostGradients returns where to write those of a module; EndHostGradients says that they
  /// are written. The module must have been acquired in this step. Errors: kUnavailable if no host
  /// memory is planned for gradients.
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
  /// (FirstDestroyed in zero/tensor_figures.h), is not committed: kNumeric.
  virtual void BeginCommit(const TrainState& state, std::function<Status()> first) = 0;
  /// Waits for the commit that was begun, if any. Afterwards it is durable; if it failed, the
  /// engine has failed, too.
  virtual Status FinishCommit() = 0;
  /// Takes the newest commit back (offload::StateFile::TakeBack). No step and no commit follows.
  virtual Status TakeBackCommit() = 0;
  /// Checks that the newest commit is on the drives (offload::StateFile::CheckCommit), also after a
  /// failure. Not between BeginCommit and FinishCommit.
  virtual Status CheckCommit() const = 0;

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
