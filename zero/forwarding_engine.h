// An engine that hands every call to another one, for engines that change a few of them: in
// measurements (bench/phase_engine.h) and in tests.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "zero/engine.h"

namespace penstock::zero {

class ForwardingEngine : public Engine {
 public:
  Status BeginStep(double lr, uint64_t t) override { return to().BeginStep(lr, t); }
  Result<const std::byte*> Acquire(ModuleId module) override { return to().Acquire(module); }
  Status FillTiles(const TileFill& fill) override { return to().FillTiles(fill); }
  Result<TrainState> Adopt() override { return to().Adopt(); }
  const EngineOptions& options() const override { return to().options(); }
  const offload::ShardLayout& layout() const override { return to().layout(); }
  device::Stream& compute_stream() override { return to().compute_stream(); }
  void SetOrder(const StepOrder& order) override { to().SetOrder(order); }
  void ExpectLastStep() override { to().ExpectLastStep(); }
  /// An engine need not know it.
  void NumberStep(uint64_t step) override {
    if (to_ != nullptr) to_->NumberStep(step);
  }
  void Release(ModuleId module) override { to().Release(module); }
  Result<float*> Gradients(ModuleId module) override { return to().Gradients(module); }
  Status AddGradients(ModuleId module) override { return to().AddGradients(module); }
  double* Losses(uint64_t micro_batches) override { return to().Losses(micro_batches); }
  void ShareLosses(std::function<void(std::span<const double> losses)> arrived) override {
    to().ShareLosses(std::move(arrived));
  }
  Status ReduceGradients(ModuleId module) override { return to().ReduceGradients(module); }
  Result<std::vector<HostGradient>> BeginHostGradients(ModuleId module) override {
    return to().BeginHostGradients(module);
  }
  Status EndHostGradients(ModuleId module) override { return to().EndHostGradients(module); }
  void AllowUpdates() override { to().AllowUpdates(); }
  void SetNote(const StepNote& note) override { to().SetNote(note); }
  Result<GradientNorm::Value> FinishGradients() override { return to().FinishGradients(); }
  const StepFigures& figures() const override { return to().figures(); }
  std::span<const StepNote> notes() const override { return to().notes(); }
  Status UpdateStep(double grad_scale) override { return to().UpdateStep(grad_scale); }
  Status SkipStep() override { return to().SkipStep(); }
  Status DropStep() override { return to().DropStep(); }
  Status Drain() override { return to().Drain(); }
  void BeginCommit(const TrainState& state, std::function<Status()> first) override {
    to().BeginCommit(state, std::move(first));
  }
  Status FinishCommit() override { return to().FinishCommit(); }
  Status TakeBackCommit() override { return to().TakeBackCommit(); }
  Status CheckCommit() const override { return to().CheckCommit(); }
  EngineCounters counters() const override { return to().counters(); }
  Bytes host_peak() const override { return to().host_peak(); }
  const std::string& aio_engine() const override { return to().aio_engine(); }
  const std::vector<std::string>& state_paths() const override { return to().state_paths(); }
  const std::string& state_uuid() const override { return to().state_uuid(); }
  const std::vector<std::string>& notices() const override { return to().notices(); }

 protected:
  /// `to` outlives the engine. Without one, every call that comes must be overridden.
  explicit ForwardingEngine(Engine* to = nullptr) : to_(to) {}
  Engine& to() const {
    PENSTOCK_CHECK(to_ != nullptr, "a call that the engine neither answers nor hands on");
    return *to_;
  }

 private:
  Engine* const to_;
};

}  // namespace penstock::zero
