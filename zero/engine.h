// The ZeRO engine: hands modules to the model when it needs them, takes gradients, updates the
// states.
//
// One step, as the model drives it (vertical schedule: all micro-batches of a module in one use):
//   BeginStep(lr, t)
//   for each use of ModelSpec::step, in that order:
//     Acquire(module) … enqueue kernels on compute_stream() … Release(module)
//   whenever a module's gradients are complete (all micro-batches, all uses):
//   ReduceGradients(module), in the order of ModelSpec::gradients
//   EndStep(): waits for the gradients' norm, decides, and returns as soon as the update is under
//   way
// Where nothing that the update needs depends on all gradients (no clipping, no overflow check), a
// tile is updated as soon as its own is there. The next step's Acquire of a module waits for the
// update of that module's tiles and of no others.
//
// Owns the streams, the slab, the state and the optimizer threads; borrows device and
// operators. Threads: all functions are called from one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "aio/aio.h"
#include "base/activity.h"
#include "base/ledger.h"
#include "base/result.h"
#include "device/device.h"
#include "kernels/state_operators.h"
#include "offload/drive_speed.h"
#include "offload/layout.h"
#include "offload/state_check.h"
#include "zero/config.h"
#include "zero/model.h"

namespace penstock::zero {

/// What a memory plan of the engine comes to; the trainer adds its own (activations, scratch).
struct MemoryPlan {
  Bytes device_minimum;  ///< the least the engine can work with
  Bytes host_minimum;
  std::string device_sum;  ///< "parameters 6.00 MiB + gradients …", for messages
  std::string host_sum;
};

/// Counters since the engine was made. Bytes of initialisation and commits are apart.
struct EngineCounters {
  uint64_t nvme_read_bytes = 0;
  uint64_t nvme_write_bytes = 0;
  uint64_t nvme_init_bytes = 0;
  uint64_t nvme_commit_bytes = 0;
  uint64_t evictions =
      0;                 ///< device copies of modules and host copies of tiles given up for others
  uint64_t updates = 0;  ///< tiles updated
};

struct StepOutcome {
  double grad_norm = 0;  ///< of the mean gradient, before clipping; non-finite where it is
  bool skipped = false;  ///< the gradient was not finite: nothing changed
};

/// Fills `values` with elements [begin, begin + size) of tensor `tensor` of `module`: a function of
/// its arguments alone, so that any tile can be made on its own, several by as many threads.
using TensorSource =
    std::function<Status(ModuleId module, size_t tensor, uint64_t begin, std::span<float> values)>;

/// Writes a tile's parts, which are zeroed memory, as version 0.
using TileFill = std::function<Status(offload::TileId tile, std::span<std::byte> weight,
                                      std::span<std::byte> record)>;

/// What a commit keeps beside the tiles.
struct TrainState {
  uint64_t step = 0;             ///< steps done, skipped ones included
  uint64_t optimizer_steps = 0;  ///< updates applied: the rule's t and the scheduler's count
  uint64_t skipped_in_a_row = 0;
  uint64_t seed = 0;
  uint32_t compute_threads = 0;
  std::string run_json;  ///< the trainer's own: model, data and config identities
};

struct EngineOptions {
  ModelSpec model;
  Config config;  ///< homes, tile size, optimizer, budgets, aio, overlap, durability
  /// Where the files of the state go: nvme_paths, or RUN when no home is nvme.
  std::vector<std::string> state_folders;
  /// Files of a committed state to go on with in place (see Engine::Adopt), in the state_folders
  /// and in the order of their paths; none: a new state.
  std::vector<std::string> adopt;
  std::optional<offload::Uuid> state_uuid;  ///< of a new state; none: a random one
  uint64_t seed = 0;                        ///< of stochastic rounding
  Bytes host_memory;                        ///< limit of all that is charged to it
  Bytes device_reserved;  ///< device bytes that others take (activations, scratch): not for us
  Bytes host_reserved;    ///< of host_memory, what others take (activation checkpoints)
  ActivityMeter* meter = nullptr;

  // What tests put something else in for: how the I/O engine of a path is made, and what decides
  // the paths' shares.
  std::function<Result<std::unique_ptr<aio::Engine>>(size_t path, const aio::EngineOptions& options,
                                                     std::string* notice)>
      create_io = [](size_t, const aio::EngineOptions& options, std::string* notice) {
        return aio::CreateEngine(options, notice);
      };
  offload::SpeedProbe probe = offload::MeasureSpeed;
};

class Engine {
 public:
  /// The sums for a model and a config, without allocating anything.
  static MemoryPlan Plan(const ModelSpec& model, const Config& config);

  /// Creates the slab, the state (preallocated), the threads. Errors: kBudget with the sum and
  /// the smallest limit that works; those of the state and the I/O engines.
  static Result<std::unique_ptr<Engine>> Create(EngineOptions options, device::Device& device,
                                                kernels::StateOperators& operators);
  /// Stops the optimizer threads after the tiles they work on; what was not committed is lost.
  virtual ~Engine() = default;

  // One of these three comes before the first step.
  /// Sets every weight from `source` and the moments to what they begin with, tile by tile.
  Status Initialize(const TensorSource& source);
  /// Sets every tile, one after the other.
  virtual Status FillTiles(const TileFill& fill) = 0;
  /// Takes the tiles as the newest commit of the files in EngineOptions::adopt has them, without
  /// moving what is at home on nvme, and returns what that commit keeps beside them. Errors: of
  /// reads; kCorruption, naming the tile.
  virtual Result<TrainState> Adopt() = 0;

  virtual const offload::ShardLayout& layout() const = 0;
  virtual device::Stream& compute_stream() = 0;

  /// The module's flat 16-bit (or fp32) parameters on the device; tensors lie at layout offsets.
  /// Work enqueued on compute_stream() after the call sees the current version. Uses must come in
  /// the declared order. Errors: of reads and updates that the module depends on.
  virtual Result<const std::byte*> Acquire(ModuleId module) = 0;
  /// Kernels enqueued so far are the last that read it in this use.
  virtual void Release(ModuleId module) = 0;

  /// The module's fp32 gradient sums on the device (flat index), zeroed on first use in a step.
  /// Modules in use at the same time have their own; valid until ReduceGradients.
  virtual float* Gradients(ModuleId module) = 0;
  /// The sums are complete on compute_stream(): round once, bring them home, take the block sums.
  virtual Status ReduceGradients(ModuleId module) = 0;

  /// No step follows the one that begins next: nothing is read ahead for another.
  virtual void ExpectLastStep() {}
  /// Begins a step, whose update has learning rate `lr` and is the rule's update `t` (from 1).
  virtual Status BeginStep(double lr, uint64_t t) = 0;
  /// Ends a step whose gradients (of the mean loss) are all reduced: takes their norm, decides, and
  /// starts the update where it has not begun yet, or skips it. With overlap off, returns after the
  /// update. Errors: kNumeric for a non-finite norm that may not be skipped.
  virtual Result<StepOutcome> EndStep() = 0;
  /// Waits for all updates and write-backs; the first failure of any.
  virtual Status Drain() = 0;

  /// Begins to commit the state as it is after the last EndStep, `state` beside it: once its
  /// updates are written, `first` runs (on any thread), what is not on the drive is written and
  /// everything synchronised, then the record. Training may go on meanwhile, but for EndStep, Drain
  /// and another commit, which come after FinishCommit. A state with a weight that is not finite is
  /// not committed: kNumeric.
  virtual void BeginCommit(const TrainState& state, std::function<Status()> first) = 0;
  /// Waits for the commit that was begun, if any: it is durable, or has failed, and with it the
  /// engine.
  virtual Status FinishCommit() = 0;
  Status Commit(const TrainState& state);
  /// Whether the newest commit is on the drives (offload::StateFile::CheckCommit), after a failure
  /// as well. Not between BeginCommit and FinishCommit.
  virtual Status CheckCommit() const = 0;

  virtual EngineCounters counters() const = 0;
  virtual Bytes host_peak() const = 0;
  virtual const std::string& aio_engine() const = 0;
  /// The state's files by index of their path, and its UUID as text.
  virtual const std::vector<std::string>& state_paths() const = 0;
  virtual const std::string& state_uuid() const = 0;
  /// Lines worth telling the user once: which engine and why, what was chosen for the budgets.
  virtual const std::vector<std::string>& notices() const = 0;

 protected:
  /// `accumulator`: what Initialize sets exp_avg_sq to.
  explicit Engine(double accumulator = 0) : accumulator_(static_cast<float>(accumulator)) {}

  /// As FillTiles, but that several threads may call `fill`.
  virtual Status FillTilesAtOnce(const TileFill& fill) { return FillTiles(fill); }

 private:
  const float accumulator_;
};

/// Fills tiles of `layout` from tensors, exp_avg with zeros and exp_avg_sq with `accumulator`.
TileFill FillFromTensors(const offload::ShardLayout& layout, TensorSource source,
                         float accumulator);

/// What a committed state holds of every element, as fp32; which moments depends on the optimizer.
/// The master of a frozen element is its weight.
enum class StateKind { kMaster, kExpAvg, kExpAvgSq };
std::vector<StateKind> StatesOf(const offload::GroupLayout& group);

/// Reads a committed state, for export, inspection and comparison. Threads: one at a time.
class CommittedState {
 public:
  /// Opens the newest valid commit; nobody can write to the state while it is open, and with
  /// `exclusive` nobody else can read it either. Errors: kNotFound, kUnavailable (in use),
  /// kCorruption.
  static Result<std::unique_ptr<CommittedState>> Open(const std::vector<std::string>& state_paths,
                                                      bool exclusive = false);
  virtual ~CommittedState() = default;

  virtual const TrainState& train_state() const = 0;
  /// Of the state, as text.
  virtual std::string uuid() const = 0;
  virtual const offload::ShardLayout& layout() const = 0;
  /// Two slots: a crash leaves the commit in place.
  virtual bool durable() const = 0;
  /// Something to tell the user about the commit that was opened, or nothing.
  virtual std::string notice() const { return {}; }
  /// The share of the state that each of its files holds, 0 to 1.
  virtual std::vector<double> Shares() const = 0;
  /// Elements [begin, begin + size) of one of the states of its group, of a tensor, exactly;
  /// verifies checksums of the tiles it reads. The last tile stays in memory: reading a tensor in
  /// order reads each tile once, and so does reading every state of a tile before the next tile.
  virtual Status ReadState(StateKind kind, ModuleId module, size_t tensor, uint64_t begin,
                           std::span<float> values) = 0;
  /// Reads everything and verifies every checksum, at the speed of the drives.
  virtual Result<offload::StateCheck> Check(const offload::CheckProgress& progress) = 0;
};

/// Fills tiles of `layout`, which may cut the same tensors into other tiles, with all that `state`
/// holds. Borrows both.
TileFill FillFromState(const offload::ShardLayout& layout, CommittedState& state);

}  // namespace penstock::zero
