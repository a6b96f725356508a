// The engine for optimizer states on the host or on nvme: the CPU updates what the device computes.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "offload/executor.h"
#include "offload/slab.h"
#include "offload/state_file.h"
#include "offload/tile_store.h"
#include "zero/device_gradients.h"
#include "zero/engine.h"
#include "zero/gradient_norm.h"
#include "zero/memory_plan.h"
#include "zero/optimizer_driver.h"
#include "zero/state_io.h"

namespace penstock::zero {

class OffloadEngine : public Engine {
 public:
  static Result<std::unique_ptr<Engine>> Create(EngineOptions options, device::Device& device,
                                                kernels::StateOperators& operators);
  /// Ends a commit that was begun.
  ~OffloadEngine() override { static_cast<void>(FinishCommit()); }

  Status FillTiles(const TileFill& fill) override { return FillTilesBy(1, fill); }
  Result<TrainState> Adopt() override;
  const offload::ShardLayout& layout() const override { return layout_; }
  device::Stream& compute_stream() override { return *compute_; }
  Result<const std::byte*> Acquire(ModuleId module) override;
  void Release(ModuleId module) override { executor_->Release(module); }
  float* Gradients(ModuleId module) override { return sums_->Sums(module, *compute_); }
  Status ReduceGradients(ModuleId module) override;
  void ExpectLastStep() override { store_->EndAfterThisStep(); }
  Status BeginStep(double lr, uint64_t t) override;
  Result<StepOutcome> EndStep() override;
  Status Drain() override;
  void BeginCommit(const TrainState& state, std::function<Status()> first) override;
  Status FinishCommit() override;
  Status CheckCommit() const override { return io_.file->CheckCommit(); }
  EngineCounters counters() const override;
  Bytes host_peak() const override { return ledger_.peak(Tier::kHost); }
  const std::string& aio_engine() const override { return io_.engine_name(); }
  const std::vector<std::string>& state_paths() const override { return io_.paths; }
  const std::string& state_uuid() const override { return io_.uuid; }
  const std::vector<std::string>& notices() const override { return io_.notices; }

 protected:
  /// By as many threads as update, on their CPUs.
  Status FillTilesAtOnce(const TileFill& fill) override;

 private:
  /// Where rounded gradients leave the device from: two of them, so that rounding one tile and
  /// copying the one before overlap.
  struct Staging {
    device::DeviceBuffer buffer;
    device::Event copied;
  };

  OffloadEngine(EngineOptions options, offload::ShardLayout layout,
                kernels::StateOperators& operators);
  Status Build(device::Device& device);
  Status BuildHost(const MemoryLayout& plan, device::Device& device);
  void AddTierNotice(const offload::TileStoreOptions& store);
  Status BuildDevice(device::Device& device);
  Status FillTilesBy(int threads, const TileFill& fill);
  bool UpdatesWithGradients() const;
  Status LetUpdatesBegin();
  GradientNorm::Value WaitForNorm();
  void SendGradient(offload::TileId tile, const float* sums);
  UpdateScalars ScalarsOfStep(double grad_scale) const;

  const EngineOptions options_;
  const offload::ShardLayout layout_;
  kernels::StateOperators& operators_;
  Trace* const trace_;
  Trace::Row waits_;
  Trace::Row commits_;
  offload::Schedule schedule_;
  Ledger ledger_;
  std::vector<Reservation> reservations_;
  std::optional<offload::Slab> slab_;
  device::HostRegistration registration_;        ///< of the slab
  std::vector<std::span<std::byte>> gradients_;  ///< of each tile, in host memory
  StateIo io_;
  GradientNorm norm_;
  uint64_t version_ = 0;  ///< updates of whole steps
  double lr_ = 0;         ///< of this step
  uint64_t t_ = 0;
  bool updating_ = false;                ///< this step's updates begin with their gradients
  bool committing_ = false;              ///< a commit was begun, and not finished
  std::atomic<bool> committed_ = false;  ///< and it has ended, for whatever reason
  std::function<void()> commit_;         ///< what makes it
  std::thread committer_;                ///< runs that
  Status outcome_;                       ///< of it, once it has ended
  uint64_t evictions_before_ = 0;        ///< by initialisation
  // Members are destroyed in reverse order: the streams end first, as their work reads slots, sums
  // and staging and calls the driver and the store; the driver ends before the store it takes tiles
  // from.
  std::unique_ptr<offload::TileStore> store_;
  std::unique_ptr<OptimizerDriver> driver_;
  std::optional<DeviceGradients> sums_;
  std::array<Staging, 2> staging_;
  size_t next_staging_ = 0;
  std::unique_ptr<offload::Executor> executor_;
  std::unique_ptr<device::Stream> compute_;
  std::unique_ptr<device::Stream> copy_out_;
};

}  // namespace penstock::zero
