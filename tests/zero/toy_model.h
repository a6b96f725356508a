// A model of nothing but weights, for tests of the engine: its gradient is a fixed function of
// them.
#pragma once

#include <gtest/gtest.h>
#include <algorithm>

#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "device/device.h"
#include "kernels/dtype.h"
#include "kernels/state/state_operators.h"
#include "zero/model.h"
#include "zero/session/session.h"
#include "zero/states/committed_state.h"

namespace penstock::zero {

inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// Modules: "in" (used twice, like a tied embedding), "layer.0" … (repeated), "out".
inline ModelSpec ToySpec(uint64_t layers, uint64_t layer_elements) {
  ModelSpec model;
  model.modules.push_back({.name = "in", .tensors = {{"in.weight", {100, 50}, offload::kDecay}}});
  for (uint64_t i = 0; i < layers; ++i) {
    const std::string name = "layer." + std::to_string(i);
    model.modules.push_back({.name = name,
                             .tensors = {{name + ".bias", {37}, offload::kNoDecay},
                                         {name + ".weight", {layer_elements}, offload::kDecay}},
                             .repeated = true});
  }
  model.modules.push_back({.name = "out", .tensors = {{"out.weight", {64}, offload::kNoDecay}}});
  const auto id = [](uint64_t i) { return ModuleId{static_cast<uint32_t>(i)}; };
  for (uint64_t i = 0; i <= layers + 1; ++i) model.step.push_back({id(i), false});
  model.step.push_back({id(0), true});
  for (uint64_t i = layers; i >= 1; --i) model.step.push_back({id(i), true});
  for (uint64_t i = layers; i >= 1; --i) model.gradients.push_back(id(i));
  model.gradients.push_back(id(layers + 1));
  model.gradients.push_back(id(0));
  return model;
}

/// A weight that depends on where it stands.
inline Status ToyWeights(ModuleId module, size_t tensor, uint64_t begin, std::span<float> values) {
  for (size_t i = 0; i < values.size(); ++i) {
    const uint64_t at = begin + i;
    values[i] =
        0.01F * static_cast<float>((at * 7 + 13 * tensor + offload::Index(module)) % 101) - 0.5F;
  }
  return {};
}

/// Drives one engine through steps, as a trainer does.
class ToyRun {
 public:
  /// What the CPU device is wrapped in.
  using Wrap =
      std::function<std::unique_ptr<device::Device>(std::unique_ptr<device::Device> device)>;

  ToyRun(EngineOptions options, Bytes device_memory, const Wrap& wrap = {},
         bool foreign_stream = false, double lr = 1e-2)
      : meter_() {
    dtype_ = options.config.dtype;
    options.meter = &meter_;
    device_ =
        std::move(device::CreateCpuDevice({.memory = device_memory, .meter = &meter_})).value();
    if (wrap) device_ = wrap(std::move(device_));
    if (foreign_stream) stream_ = device_->CreateStream("the caller's").value();
    options.compute_stream = stream_.get();
    operators_ = kernels::CreateStateOperators(device_->kind(), 1).value();
    uses_ = options.model.step;
    options.config.optimizer.lr = lr;
    auto session =
        Session::Create(std::move(options), LossReports::kEachStep, *device_, *operators_);
    status_ = session.status();
    if (session.ok()) session_ = std::move(session).value();
  }

  const Status& created() const { return status_; }
  Session& session() { return *session_; }
  const device::Stream* foreign_stream() const { return stream_.get(); }
  ActivityMeter& meter() { return meter_; }
  device::Device& device() { return *device_; }
  /// Enqueues work of the model; replaced where the device is no CPU device.
  std::function<void(device::Stream& stream, std::function<void()> kernel)> launch =
      [](device::Stream& stream, std::function<void()> kernel) {
        static_cast<device::CpuStream&>(stream).Launch(std::move(kernel));
      };
  std::function<void()> before_update;  ///< called when a step has computed its gradients

  /// One step, which is update `t`; `scale` scales the gradient (infinity: not finite), and `loss`
  /// is reported when the forward is done.
  Result<StepOutcome> Step(uint64_t t, float scale, double loss = 1) {
    EXPECT_EQ(t, session_->state().optimizer_steps + 1);
    PENSTOCK_ASSIGN(zero::Step step, session_->BeginStep());
    const size_t forward = session_->layout().model.modules.size();
    for (size_t use = 0; use < uses_.size(); ++use) {
      const ModuleId module = uses_[use].module;
      if (use == forward) Report(step, loss);
      PENSTOCK_ASSIGN(zero::Use held, step.Acquire(module));
      if (use >= forward || use + 1 == forward) PENSTOCK_TRY(AddGradient(step, held, scale));
      held.Release();
      if (use >= forward && offload::Index(module) != 0) {
        PENSTOCK_TRY(ReduceGradients(step, module));
      }
    }
    PENSTOCK_TRY(ReduceGradients(step, ModuleId{static_cast<uint32_t>(forward - 1)}));
    PENSTOCK_TRY(ReduceGradients(step, ModuleId{0}));
    if (before_update) before_update();
    PENSTOCK_TRY(session_->FinishCommit());
    return step.Finish();
  }

  /// Enqueues the toy's gradient of a module, of its weights alone.
  Status AddGradient(zero::Step& step, const zero::Use& use, float scale) {
    const ModuleId module = use.module();
    if (!Trains(module)) return {};
    PENSTOCK_ASSIGN(float* const sums, step.Gradients(module));
    const std::byte* const weights = use.weights();
    const offload::ShardLayout& layout = step.layout();
    const float factor = scale * static_cast<float>(step.loss_scale());
    launch(step.compute_stream(), [weights, sums, &layout, module, factor]() {
      // Padding and frozen tensors have no gradient.
      for (const offload::TensorLayout& tensor : layout.module(module).tensors) {
        const offload::GroupLayout& group = layout.model.group(tensor.group);
        if (group.frozen) continue;
        const std::byte* const values = weights + layout.SlotOffset(module, tensor.offset).value;
        for (uint64_t i = 0; i < tensor.elements; ++i) {
          const float weight = WeightAt(values, group.planes.weight().encoding, i);
          const uint64_t at = tensor.offset + i;
          sums[at] += (weight * 0.3F + 0.01F * static_cast<float>(at % 5)) * factor;
        }
      }
    });
    return {};
  }
  Status ReduceGradients(zero::Step& step, ModuleId module) {
    return Trains(module) ? step.ReduceGradients(module) : Status();
  }
  /// From the stream, as a model does.
  static void Report(zero::Step& step, double loss) {
    step.compute_stream().Call([report = step.LossReporter(), loss]() { report(loss); });
  }
  /// Whether any of its tensors is not frozen.
  bool Trains(ModuleId module) const {
    return session_->layout().model.TrainedElements(module) > 0;
  }

  static float WeightAt(const std::byte* weights, Encoding encoding, uint64_t i) {
    switch (encoding) {
      case Encoding::kBFloat16:
        return kernels::ToFloat(reinterpret_cast<const kernels::BFloat16*>(weights)[i]);
      case Encoding::kFloat16:
        return kernels::ToFloat(reinterpret_cast<const kernels::Float16*>(weights)[i]);
      default:
        return reinterpret_cast<const float*>(weights)[i];
    }
  }

 private:
  ActivityMeter meter_;
  DType dtype_ = DType::kFloat32;
  std::vector<ModuleUse> uses_;
  std::unique_ptr<device::Device> device_;
  std::unique_ptr<device::Stream> stream_;
  std::unique_ptr<kernels::StateOperators> operators_;
  std::unique_ptr<Session> session_;
  Status status_;
};

/// One state of every tensor of a committed state, one after the other; empty where its optimizer
/// does not keep it.
inline std::vector<float> CommittedValues(const std::vector<std::string>& state_paths,
                                          StateKind kind) {
  auto state = CommittedState::Open(state_paths);
  EXPECT_TRUE(state.ok()) << state.error().message;
  std::vector<float> all;
  const offload::ModelLayout& layout = (*state)->model();
  for (const ModuleId module : offload::Ids<ModuleId>(layout.modules.size())) {
    for (size_t tensor = 0; tensor < layout.module(module).tensors.size(); ++tensor) {
      const offload::TensorLayout& place = layout.module(module).tensors[tensor];
      const std::vector<StateKind> kept = StatesOf(layout.group(place.group));
      if (std::find(kept.begin(), kept.end(), kind) == kept.end()) continue;
      std::vector<float> values(place.elements);
      const Status read = (*state)->ReadState(kind, module, tensor, 0, values);
      EXPECT_TRUE(read.ok()) << read.error().message;
      all.insert(all.end(), values.begin(), values.end());
    }
  }
  return all;
}

}  // namespace penstock::zero
