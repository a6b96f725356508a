// An engine for tests of a model: everything lies on one device, and what breaks the contract of
// zero/engine/engine.h is a test failure. Weights are NaN outside of acquire … release, and
// gradient sums after their reduction, so that a use out of time shows in the numbers.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "device/device.h"
#include "zero/engine/forwarding_engine.h"
#include "zero/model.h"

namespace penstock::train {

class FakeEngine final : public zero::ForwardingEngine {
 public:
  /// Weights from `source`, rounded to `dtype` when they are acquired.
  FakeEngine(zero::ModelSpec spec, DType dtype, device::Device& device,
             const zero::TensorSource& source, uint64_t micro_batches = 1);

  /// Checks that the last step made every declared use and reduced every module once; the next
  /// begins.
  void FinishStep();
  /// A module's weights, to read or change between steps.
  std::span<float> weights(const std::string& tensor);
  /// Gradient sums of the last step; read them after a wait for the stream.
  std::span<const float> gradients(const std::string& tensor);
  std::vector<std::string> tensor_names() const;
  /// From now on sums begin at zero with each call of Gradients, not with the first of a step.
  void KeepPartsApart() { keeps_parts_apart_ = true; }
  /// The sums that the second call found, where they are kept apart and there was one; else
  /// nothing.
  std::span<const float> first_part(const std::string& tensor);
  /// "acquire wte", "release wte", "reduce wte" in the order of the calls of this step.
  const std::vector<std::string>& calls() const { return calls_; }
  /// The n-th acquire of the next step (from 0) fails.
  void FailAcquire(size_t n) { failing_acquire_ = n; }
  size_t held() const;

  const zero::EngineOptions& options() const override { return options_; }
  const offload::ShardLayout& layout() const override { return layout_; }
  device::Stream& compute_stream() override { return *stream_; }
  Result<const std::byte*> Acquire(zero::ModuleId id) override;
  void Release(zero::ModuleId id) override;
  Result<float*> Gradients(zero::ModuleId id) override;
  Status AddGradients(zero::ModuleId id) override;
  Status ReduceGradients(zero::ModuleId id) override;
  double* Losses(uint64_t micro_batches) override;
  void ShareLosses(std::function<void(std::span<const double> losses)> arrived) override;
  // A step that is finished changes nothing, and nobody waits for its work.
  Status BeginStep(double, uint64_t) override { return {}; }
  void AllowUpdates() override {}
  Result<zero::GradientNorm::Value> FinishGradients() override {
    return zero::GradientNorm::Value{.norm = 1};
  }
  Status UpdateStep(double) override { return {}; }
  Status SkipStep() override { return {}; }
  Status DropStep() override { return {}; }
  Status FillTiles(const zero::TileFill&) override { return {}; }
  // A model has no business with the rest.

 private:
  struct Module {
    std::vector<float> weights;        // home, flat index
    std::vector<std::byte> converted;  // the same in the compute dtype
    std::vector<float> gradients;      // sums that were reduced
    std::vector<float> first_part;     // sums that the second call of Gradients found
    device::DeviceBuffer device_weights;
    device::DeviceBuffer device_gradients;
    bool held = false;
    bool accumulating = false;  // sums were zeroed in this step
    int reductions = 0;
  };

  Module& module(zero::ModuleId id) { return modules_[offload::Index(id)]; }
  void Convert(Module& module);
  void Poison(const device::DeviceBuffer& buffer);
  std::span<float> Tensor(const std::string& name, std::vector<float> Module::*flat);

  zero::EngineOptions options_;
  const zero::ModelSpec& spec_ = options_.model;
  const DType dtype_;
  offload::ShardLayout layout_;
  std::vector<Module> modules_;
  std::vector<std::byte> poison_;
  device::DeviceBuffer losses_;
  std::vector<double> host_losses_;
  uint64_t losses_of_step_ = 0;
  bool losses_zeroed_ = false;
  std::unique_ptr<device::Stream> stream_;
  std::vector<std::string> calls_;
  size_t next_use_ = 0;
  size_t failing_acquire_ = SIZE_MAX;
  bool keeps_parts_apart_ = false;
};

}  // namespace penstock::train
