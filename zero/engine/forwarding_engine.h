// An engine that hands every call to another one, for engines that change a few of them: in
// measurements (bench/phase_engine.h) and in tests.
#pragma once

#include <functional>
#include <utility>

#include "base/check.h"
#include "zero/engine/engine.h"
#include "zero/engine/forwarding_states.h"

namespace penstock::zero {

class ForwardingEngine : public ForwardingStates<Engine> {
 public:
  /// An engine need not know it.
  void NumberStep(uint64_t step) override {
    if (to_ != nullptr) to_->NumberStep(step);
  }
  device::Stream& compute_stream() override { return to().compute_stream(); }
  Result<const std::byte*> Acquire(ModuleId module) override { return to().Acquire(module); }
  void Release(ModuleId module) override { to().Release(module); }
  Result<float*> Gradients(ModuleId module) override { return to().Gradients(module); }
  Status AddGradients(ModuleId module) override { return to().AddGradients(module); }
  Status ReduceGradients(ModuleId module) override { return to().ReduceGradients(module); }
  double* Losses(uint64_t micro_batches) override { return to().Losses(micro_batches); }
  void ShareLosses(std::function<void(std::span<const double> losses)> arrived) override {
    to().ShareLosses(std::move(arrived));
  }

 protected:
  /// `to` outlives the engine. Without one, every call that comes must be overridden.
  explicit ForwardingEngine(Engine* to = nullptr) : to_(to) {}

 private:
  StatePort& states() const override { return to(); }
  Engine& to() const {
    PENSTOCK_CHECK(to_ != nullptr, "a call that the engine neither answers nor hands on");
    return *to_;
  }

  Engine* const to_;
};

}  // namespace penstock::zero
