// The engine for training that fits: weights, gradients and states on the device, updated there.
//
// This engine is the reference that every other placement must equal bit for bit. Host memory holds
// a few tiles, for initialisation and commits. A commit is made beside the next step, on a thread
// and a stream of its own (zero/states/tile_writer.h). It also serves a caller that computes by
// itself (ModelSpec::gives_gradients): resident_engine_caller.cc has the functions for that.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "offload/commit_verifier.h"
#include "offload/slab.h"
#include "zero/engine/compute_stream.h"
#include "zero/engine/device_figures.h"
#include "zero/engine/engine.h"
#include "zero/engine/exchanges.h"
#include "zero/engine/state_io.h"
#include "zero/gradient_norm.h"
#include "zero/states/pending_commit.h"
#include "zero/states/tile_writer.h"
#include "zero/states/trust_sums.h"
#include "zero/update_scalars.h"

namespace penstock::zero {

class ResidentEngine : public Engine {
 public:
  static Result<std::unique_ptr<Engine>> Create(EngineOptions options, device::Device& device,
                                                kernels::StateOperators& operators);
  /// The same for a caller that gives gradients.
  static Result<std::unique_ptr<ResidentEngine>> CreateForCaller(
      EngineOptions options, device::Device& device, kernels::StateOperators& operators);
  /// Ends a commit that was begun.
  ~ResidentEngine() override { static_cast<void>(ResidentEngine::FinishCommit()); }

  Status FillTiles(const TileFill& fill) override;
  Status FillTile(offload::TileId tile, const TileFill& fill) override;
  Status EndFill() override;
  Result<TrainState> Adopt() override;
  const EngineOptions& options() const override { return options_; }
  const offload::ShardLayout& layout() const override { return layout_; }
  device::Stream& compute_stream() override { return *compute_; }
  void SetOrder(const StepOrder&) override {}
  void NumberStep(uint64_t step) override { exchanges_.NumberStep(step); }
  Status BeginStep(double lr, uint64_t t) override;
  void SetGroups(std::vector<GroupSpec> groups, double lr) override {
    groups_ = std::move(groups);
    lr_ = lr;
  }
  Result<const std::byte*> Acquire(ModuleId module) override;
  void Release(ModuleId) override {}
  Result<float*> Gradients(ModuleId module) override {
    return exchanges_.sums().Buffer(module, *compute_);
  }
  Status AddGradients(ModuleId module) override { return exchanges_.sums().Add(module, *compute_); }
  double* Losses(uint64_t micro_batches) override {
    return exchanges_.losses().OnDevice(micro_batches, *compute_);
  }
  void ShareLosses(std::function<void(std::span<const double> losses)> arrived) override {
    exchanges_.losses().Share(*compute_, std::move(arrived));
  }
  Status ReduceGradients(ModuleId module) override;
  Result<std::vector<HostGradient>> BeginHostGradients(ModuleId module) override;
  Status EndHostGradients(ModuleId module) override;
  /// Does nothing: updates come when the step ends.
  void AllowUpdates() override {}
  void SetNote(const StepNote& note) override { exchanges_.SetNote(note); }
  Result<GradientNorm::Value> FinishGradients() override;
  const StepFigures& figures() const override { return figures_; }
  std::span<const StepNote> notes() const override { return exchanges_.notes(); }
  Status UpdateStep(double grad_scale) override;
  Status SkipStep() override { return {}; }
  Status DropStep() override;
  Status Drain() override { return compute_->Synchronize(); }
  /// Waits for the last update, and looks at the weights; the rest is made beside the next step.
  void BeginCommit(const TrainState& state, std::function<Status()> first) override;
  Status WriteCallerFile(std::string_view content) override {
    return io_.file->WriteCallerFile(content);
  }
  Status FinishCommit() override;
  Status TakeBackCommit() override { return io_.file->TakeBack(); }
  Status CheckCommit() const override { return io_.file->CheckCommit(); }
  Status ReadTile(offload::TileId tile, const TileReader& read) override;
  EngineCounters counters() const override;
  Bytes host_peak() const override { return ledger_.peak(Tier::kHost); }
  const std::string& aio_engine() const override { return io_.engine_name(); }
  const std::vector<std::string>& state_paths() const override { return io_.paths; }
  const std::string& state_uuid() const override { return io_.uuid; }
  const std::vector<std::string>& notices() const override { return io_.notices; }

  // For a caller that gives gradients. All work is enqueued on compute_stream(), in the order of
  // the calls.
  std::span<std::byte> memory() { return slab_->bytes(); }
  const StateIo& io() const { return io_; }
  /// Return where a tile's weights are, and where its gradient goes, on the device; those of
  /// consecutive tiles of a module lie one behind the other.
  std::byte* WeightOf(offload::TileId tile) const;
  std::byte* GradientOf(offload::TileId tile) const;
  /// Says that a module's gradients are in their places, by work that was enqueued.
  void GradientsArrived(ModuleId module);

 private:
  /// A module on the device: its flat index, tile by tile.
  struct Module {
    device::DeviceBuffer weights;
    device::DeviceBuffer records;    ///< the records of its tiles, one after the other
    device::DeviceBuffer gradients;  ///< rounded, one after the other as well
    device::Event updated;           ///< with several ranks: the last update of its tiles
    bool whole = false;              ///< the shares of all ranks are there, as this step uses them
  };
  /// Where a tile's record and gradient begin within those of its module.
  struct TileOffsets {
    Bytes record;
    Bytes gradient;
  };

  ResidentEngine(EngineOptions options, offload::ShardLayout layout,
                 kernels::StateOperators& operators);
  Status Build(device::Device& device);
  std::byte* RecordOf(offload::TileId tile) const;
  /// Returns where a tile lies in host memory, while no commit is being made.
  TileBlock HostPartsOf(offload::TileId tile) const { return blocks_[0].Of(layout_, tile); }
  class Passage;
  /// Has each tile made in host memory, by at most so many threads at a time, and sent to the
  /// device.
  Status SendTiles(int threads,
                   const std::function<Status(offload::TileId tile, const TileBlock& parts)>& make);
  static Status FillParts(offload::TileId tile, const TileBlock& parts, const TileFill& fill);
  /// Reads a committed tile, and compares its checksums. Threads: any.
  Status ReadTile(offload::TileId tile, const offload::CommittedTile& committed,
                  const TileBlock& parts);
  /// Views of a trained tile on the device.
  kernels::OptimizerTile PlanesOnDevice(offload::TileId tile) const;
  /// The first pass over all tiles, where updates take two; gives the scalars the trust ratios.
  Status SumForTrust(UpdateScalars& scalars);
  /// Errors: kNumeric if the weights after step `step` are not to be committed.
  Status CheckWeights(uint64_t step);
  /// What is looked at before a commit is begun.
  Status PrepareCommit(const TrainState& state);
  Status WriteTiles(std::vector<offload::CommittedTile>& tiles);
  Status MakeCommit(offload::CommitRecord record, const std::function<Status()>& first);

  const EngineOptions options_;
  const offload::ShardLayout layout_;
  kernels::StateOperators& operators_;
  Ledger ledger_;
  std::vector<Reservation> reservations_;
  std::vector<GroupSpec> groups_;  ///< with the scalars of the next update
  std::optional<offload::Slab> slab_;
  device::HostRegistration registration_;  ///< registration of the slab
  std::vector<TileBlock> blocks_;          ///< tiles on their way to or from the device
  StateIo io_;
  GradientNorm norm_;
  uint64_t version_ = 0;
  uint64_t updates_ = 0;
  double lr_ = 0;  ///< learning rate of this step
  uint64_t t_ = 0;
  double lr_of_update_ = 0;  ///< learning rate of the last update
  size_t sent_ = 0;          ///< tiles of this step whose block sums were sent home
  std::vector<offload::CommittedTile> committed_;  ///< tiles of the newest commit
  std::optional<uint64_t> committed_version_;      ///< none: nothing was committed
  std::vector<Module> modules_;
  std::vector<TileOffsets> offsets_;  ///< of each tile
  std::unique_ptr<DeviceFigures> device_figures_;
  std::optional<TrustBlocks> trust_;  ///< if updates take two passes
  Exchanges exchanges_;
  StepFigures figures_;  ///< figures of the last step, over all ranks
  ComputeStream compute_;
  std::unique_ptr<device::Stream> copy_out_;  ///< stream for commits
  Trace* const trace_;
  Trace::Row waits_;
  Trace::Row commits_;
  std::unique_ptr<offload::CommitVerifier> verifier_;  ///< null: commits are not verified
  std::unique_ptr<PendingCommit> commit_;              ///< begun, and not finished
};

}  // namespace penstock::zero
