// An engine for tests of a model: everything lies on one device, and what breaks the contract of
// zero/engine.h is a test failure. Weights are NaN outside of acquire … release, and gradient sums
// after their reduction, so that a use out of time shows in the numbers.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "device/device.h"
#include "zero/engine.h"
#include "zero/model.h"

namespace penstock::train {

class FakeEngine final : public zero::Engine {
 public:
  /// Weights from `source`, rounded to `dtype` when they are acquired.
  FakeEngine(zero::ModelSpec spec, DType dtype, device::Device& device,
             const zero::TensorSource& source);

  /// Checks that the last step made every declared use and reduced every module once; the next
  /// begins.
  void FinishStep();
  /// A module's weights, to read or change between steps.
  std::span<float> weights(const std::string& tensor);
  /// Gradient sums of the last step; read them after a wait for the stream.
  std::span<const float> gradients(const std::string& tensor);
  std::vector<std::string> tensor_names() const;
  /// "acquire wte", "release wte", "reduce wte" in the order of the calls of this step.
  const std::vector<std::string>& calls() const { return calls_; }
  /// The n-th acquire of the next step (from 0) fails.
  void FailAcquire(size_t n) { failing_acquire_ = n; }
  size_t held() const;

  const offload::ShardLayout& layout() const override { return layout_; }
  device::Stream& compute_stream() override { return *stream_; }
  Result<const std::byte*> Acquire(zero::ModuleId id) override;
  void Release(zero::ModuleId id) override;
  float* Gradients(zero::ModuleId id) override;
  Status ReduceGradients(zero::ModuleId id) override;

  // What a model has no business with.
  Status FillTiles(const zero::TileFill&) override { return NotForModels(); }
  Result<zero::TrainState> Adopt() override { return NotForModels().error(); }
  Status BeginStep(double, uint64_t) override { return NotForModels(); }
  Result<zero::StepOutcome> EndStep() override { return NotForModels().error(); }
  Status Drain() override { return NotForModels(); }
  void BeginCommit(const zero::TrainState&, std::function<Status()>) override {}
  Status FinishCommit() override { return NotForModels(); }
  Status CheckCommit() const override { return NotForModels(); }
  zero::EngineCounters counters() const override { return {}; }
  Bytes host_peak() const override { return {}; }
  const std::string& aio_engine() const override { return empty_; }
  const std::vector<std::string>& state_paths() const override { return paths_; }
  const std::string& state_uuid() const override { return empty_; }
  const std::vector<std::string>& notices() const override { return notices_; }

 private:
  struct Module {
    std::vector<float> weights;        // home, flat index
    std::vector<std::byte> converted;  // the same in the compute dtype
    std::vector<float> gradients;      // sums that were reduced
    device::DeviceBuffer device_weights;
    device::DeviceBuffer device_gradients;
    bool held = false;
    bool accumulating = false;  // sums were zeroed in this step
    int reductions = 0;
  };

  static Status NotForModels();
  Module& module(zero::ModuleId id) { return modules_[offload::Index(id)]; }
  void Convert(Module& module);
  void Poison(const device::DeviceBuffer& buffer);
  std::span<float> Tensor(const std::string& name, std::vector<float> Module::*flat);

  zero::ModelSpec spec_;
  const DType dtype_;
  offload::ShardLayout layout_;
  std::vector<Module> modules_;
  std::vector<std::byte> poison_;
  std::unique_ptr<device::Stream> stream_;
  std::vector<std::string> calls_;
  size_t next_use_ = 0;
  size_t failing_acquire_ = SIZE_MAX;
  std::string empty_;
  std::vector<std::string> paths_;
  std::vector<std::string> notices_;
};

}  // namespace penstock::train
