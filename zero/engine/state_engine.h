// The host half of offloading: states in host memory and on the drives, updated by threads of the
// CPU.
//
// Knows no device and no operators of a model. Gradients come into host memory, from a device
// (zero/engine/offload_engine.h) or from the caller; weights leave through the tile store. Both are
// in the slab, which the owner may register with its device.
//
// By itself it is the port of states of one rank. The owner that brings the weights sets the time
// of the store (offload::TileStore::SetTime). The engine of several ranks has its own
// FinishGradients and UpdateStep, of the parts of these.
//
// Owns slab, state, I/O engines, tile store, schedule and optimizer threads. Threads: AllowUpdates
// and GradientsArrived from any thread, all else from one.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "offload/commit_verifier.h"
#include "offload/schedule.h"
#include "offload/slab.h"
#include "offload/tile_store.h"
#include "zero/engine/memory_plan.h"
#include "zero/engine/state_io.h"
#include "zero/engine/state_port.h"
#include "zero/gradient_norm.h"
#include "zero/states/optimizer_driver.h"
#include "zero/states/pending_commit.h"
#include "zero/states/tensor_figures.h"
#include "zero/states/trust_sums.h"

namespace penstock::zero {

class StateEngine : public StatePort {
 public:
  /// `device` computes the model. Options and layout outlive the engine. Errors: kBudget; of the
  /// state and the I/O engines.
  static Result<std::unique_ptr<StateEngine>> Create(const EngineOptions& options,
                                                     const offload::ShardLayout& layout,
                                                     const MemoryPlan& plan,
                                                     const ComputeDevice& device);
  /// Ends a commit that was begun.
  ~StateEngine() override { static_cast<void>(StateEngine::FinishCommit()); }
  StateEngine(const StateEngine&) = delete;
  StateEngine& operator=(const StateEngine&) = delete;

  // See zero/engine/state_port.h.
  Status FillTiles(const TileFill& fill) override;
  /// Several threads may each fill tiles.
  Status FillTile(offload::TileId tile, const TileFill& fill) override;
  Status EndFill() override;
  Result<TrainState> Adopt() override;
  const EngineOptions& options() const override { return options_; }
  const offload::ShardLayout& layout() const override { return layout_; }
  /// Replaces schedule().
  void SetOrder(const StepOrder& order) override;
  void ExpectLastStep() override { store_->EndAfterThisStep(); }
  Status BeginStep(double lr, uint64_t t) override;
  void SetGroups(std::vector<GroupSpec> groups, double lr) override;
  Result<std::vector<HostGradient>> BeginHostGradients(ModuleId module) override;
  Status EndHostGradients(ModuleId module) override;
  void AllowUpdates() override { driver_->AllowUpdates(); }
  Result<GradientNorm::Value> FinishGradients() override;
  const StepFigures& figures() const override { return figures_of_step_; }
  Status UpdateStep(double grad_scale) override;
  Status SkipStep() override;
  /// Waits for the gradients that have arrived, and drops them.
  Status DropStep() override;
  Status Drain() override { return store_->Drain(); }
  void BeginCommit(const TrainState& state, std::function<Status()> first) override;
  Status WriteCallerFile(std::string_view content) override {
    return io_.file->WriteCallerFile(content);
  }
  Status FinishCommit() override;
  Status TakeBackCommit() override { return io_.file->TakeBack(); }
  Status CheckCommit() const override { return io_.file->CheckCommit(); }
  Status ReadTile(offload::TileId tile, const TileReader& read) override {
    return store_->ReadTile(tile, read);
  }
  EngineCounters counters() const override;
  Bytes host_peak() const override { return ledger_.peak(Tier::kHost); }
  const std::string& aio_engine() const override { return io_.engine_name(); }
  const std::vector<std::string>& state_paths() const override { return io_.paths; }
  const std::string& state_uuid() const override { return io_.uuid; }
  const std::vector<std::string>& notices() const override { return io_.notices; }

  const StateIo& io() const { return io_; }
  /// The weights, for the owner that brings them to the device.
  offload::TileStore& store() { return *store_; }
  /// What the next steps are planned for.
  const offload::Schedule& schedule() const { return *schedule_; }
  /// Returns all of the slab.
  std::span<std::byte> memory() { return slab_->bytes(); }
  /// Returns the parts of the slab that copies to and from a device touch: weights and gradients,
  /// and no optimizer states. A copy touches one of them only.
  std::vector<std::span<std::byte>> copied_memory() const;
  /// Returns where a tile's gradient goes; those of consecutive tiles lie one behind the other. A
  /// caller may write it only after the tile's last update has finished.
  std::span<std::byte> Gradient(offload::TileId tile) const {
    return gradients_[offload::Index(tile)];
  }
  /// To be called before a module's gradients of this step arrive. Updates that begin with their
  /// gradients may begin from now on, if the last commit lets them.
  Status PrepareUpdates();
  /// Says that the gradients of trained tiles are in their places. May be called from any thread;
  /// short.
  void GradientsArrived(offload::IdRange<offload::TileId> tiles) {
    arrived_ += tiles.size();
    driver_->GradientsArrived(tiles);
  }
  /// Returns the figures of the gradients that were waited for, and of the update before the step,
  /// of this rank's share. Every module was acquired in the step: that update has ended.
  StepFigures Figures();
  /// Waits for the gradients of all tiles, and returns their block sums.
  GradientNorm::Blocks WaitForBlocks();
  /// Where updates take two passes: makes the first one over all tiles. Returns the sums that it
  /// leaves, of which trust().ByTensor makes those of tensors. Errors: of reads.
  Result<std::span<const kernels::TrustSums>> SumForTrust(double grad_scale);
  const TrustBlocks& trust() const { return *trust_; }
  bool takes_two_passes() const { return trust_.has_value(); }
  /// UpdateStep without the first pass. `trust`: of each tensor, over all ranks, where there was
  /// one.
  Status Update(double grad_scale, std::vector<kernels::TrustSums> trust = {});

 private:
  /// An update whose weights a commit would name.
  struct LastUpdate {
    uint64_t version = 0;
    double lr = 0;
  };
  StateEngine(const EngineOptions& options, const offload::ShardLayout& layout);
  Status Build(const MemoryPlan& plan, const ComputeDevice& device);
  std::unique_ptr<offload::Schedule> PlanSchedule(const ModelSpec& model) const;
  void AddTierNotice(const offload::TileStoreOptions& store);
  UpdateScalars ScalarsOfStep(double grad_scale) const;
  /// Looks at the weights after step `step`, once their update has ended. Errors: kNumeric if they
  /// are not to be committed.
  Status CheckWeights(uint64_t step, const std::optional<LastUpdate>& last) const;

  const EngineOptions& options_;
  const offload::ShardLayout& layout_;
  const bool with_gradients_;  ///< updates begin with their own
  Trace* const trace_;
  Trace::Row waits_;
  Trace::Row commits_;
  Ledger ledger_;
  std::vector<Reservation> reservations_;
  std::vector<GroupSpec> groups_;  ///< with the scalars of the next update
  std::optional<offload::Slab> slab_;
  std::span<std::byte> gradient_memory_;
  std::vector<std::span<std::byte>> gradients_;  ///< of each tile
  StateIo io_;
  GradientNorm norm_;
  TensorFigures figures_;
  std::optional<TrustBlocks> trust_;      ///< if updates take two passes
  uint64_t version_ = 0;                  ///< updates of whole steps
  bool updated_ = false;                  ///< this process has made an update
  std::optional<uint64_t> told_version_;  ///< version of the last returned figures
  double lr_ = 0;                         ///< learning rate of this step
  uint64_t t_ = 0;
  double lr_of_update_ = 0;                ///< learning rate of the last update
  std::atomic<size_t> arrived_ = 0;        ///< gradients of tiles in this step
  StepFigures figures_of_step_;            ///< as FinishGradients found them
  std::unique_ptr<PendingCommit> commit_;  ///< begun, and not finished
  uint64_t evictions_before_ = 0;          ///< evictions during initialisation
  uint32_t shared_slots_ = 0;
  std::unique_ptr<offload::Schedule> schedule_;
  // The driver ends before the store that it takes tiles from.
  std::unique_ptr<offload::TileStore> store_;
  std::unique_ptr<OptimizerDriver> driver_;
  std::unique_ptr<offload::CommitVerifier> verifier_;  ///< null: commits are not verified
};

}  // namespace penstock::zero
