// The engine for optimizer states on the host or on nvme: the CPU updates what the device computes.
//
// Consists of the host half (zero/engine/state_engine.h), the executor, which brings weights to the
// device, and the gradients' way back.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "offload/executor.h"
#include "zero/engine/compute_stream.h"
#include "zero/engine/engine.h"
#include "zero/engine/exchanges.h"
#include "zero/engine/forwarding_states.h"
#include "zero/engine/memory_plan.h"
#include "zero/engine/state_engine.h"
#include "zero/plan/gradient_batches.h"
#include "zero/plan/staging_ring.h"

namespace penstock::zero {

class OffloadEngine : public ForwardingStates<Engine> {
 public:
  static Result<std::unique_ptr<Engine>> Create(EngineOptions options, device::Device& device,
                                                kernels::StateOperators& operators);

  device::Stream& compute_stream() override { return *compute_; }
  void SetOrder(const StepOrder& order) override;
  void NumberStep(uint64_t step) override { exchanges_.NumberStep(step); }
  Status BeginStep(double lr, uint64_t t) override;
  Result<const std::byte*> Acquire(ModuleId module) override { return executor_->Acquire(module); }
  void Release(ModuleId module) override { executor_->Release(module); }
  Result<float*> Gradients(ModuleId module) override {
    return exchanges_.sums().Buffer(module, *compute_);
  }
  Status AddGradients(ModuleId module) override;
  double* Losses(uint64_t micro_batches) override {
    return exchanges_.losses().OnDevice(micro_batches, *compute_);
  }
  void ShareLosses(std::function<void(std::span<const double> losses)> arrived) override {
    exchanges_.losses().Share(*compute_, std::move(arrived));
  }
  Status ReduceGradients(ModuleId module) override;
  void SetNote(const StepNote& note) override { exchanges_.SetNote(note); }
  Result<GradientNorm::Value> FinishGradients() override;
  const StepFigures& figures() const override { return figures_; }
  std::span<const StepNote> notes() const override { return exchanges_.notes(); }
  Status UpdateStep(double grad_scale) override;
  Status DropStep() override;
  Status Drain() override;
  EngineCounters counters() const override;

 private:
  OffloadEngine(EngineOptions options, offload::ShardLayout layout,
                kernels::StateOperators& operators);
  Status Build(device::Device& device);
  Status BuildDevice(const MemoryPlan& plan, device::Device& device);
  StatePort& states() const override { return *state_; }
  /// To be called before an exchange, which waits for the kernels of this use: with several ranks,
  /// gathers the weights of the next one first.
  Status GatherAhead();
  void SendGradients(const StagedBatches& staged, const FinishedSums& finished);
  /// Enqueues the copies of a batch that is rounded at `from`.
  void CopyOut(const GradientBatch& staged, const std::byte* from);
  /// The device has done everything of the step.
  Status Synchronize();

  const EngineOptions options_;
  const offload::ShardLayout layout_;
  kernels::StateOperators& operators_;
  // Members are destroyed in reverse order: the streams end first, then the exchanges, as their
  // work reads slots, sums and staging and calls the state.
  std::unique_ptr<StateEngine> state_;
  std::vector<device::HostRegistration> registrations_;  ///< of weights and gradients
  device::DeviceBuffer staging_;  ///< rounded gradients, on their way to the host
  StagingRing<device::Event> ring_;
  std::unique_ptr<offload::Executor> executor_;
  Exchanges exchanges_;
  StepFigures figures_;
  ComputeStream compute_;
  std::unique_ptr<device::Stream> copy_out_;
};

}  // namespace penstock::zero
