#include "tests/train/models/gpt2_fake_engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/dtype.h"
#include "zero/plan/partitioner.h"

namespace penstock::train {
namespace {

constexpr std::byte kPoison{0xff};  // NaN in fp32 and in bf16

}  // namespace

FakeEngine::FakeEngine(zero::ModelSpec spec, DType dtype, device::Device& device,
                       const zero::TensorSource& source, uint64_t micro_batches)
    : options_{.model = std::move(spec)}, dtype_(dtype), host_losses_(micro_batches) {
  options_.config.gradient_accumulation_steps = micro_batches;
  losses_ = device.Allocate(Bytes{sizeof(double)} * micro_batches, "losses").value();
  layout_ = zero::MakeLayout(spec_, dtype, 1 << 20);
  for (size_t i = 0; i < spec_.modules.size(); ++i) {
    const offload::ModuleLayout& layout = layout_.model.modules[i];
    const Bytes slot = layout_.SlotBytes(static_cast<zero::ModuleId>(i));
    Module& module = modules_.emplace_back();
    module.weights.resize(layout.elements);
    module.gradients.resize(layout.elements);
    module.converted.resize(slot.value);
    for (size_t t = 0; t < layout.tensors.size(); ++t) {
      const offload::TensorLayout& tensor = layout.tensors[t];
      const std::span<float> values(module.weights.data() + tensor.offset, tensor.elements);
      EXPECT_TRUE(source(static_cast<zero::ModuleId>(i), t, 0, values).ok());
    }
    module.device_weights = device.Allocate(slot, "weights").value();
    module.device_gradients =
        device.Allocate(Bytes{sizeof(float)} * layout.elements, "gradients").value();
    poison_.resize(std::max(poison_.size(), sizeof(float) * layout.elements), kPoison);
  }
  stream_ = device.CreateStream("compute").value();
  for (const Module& module : modules_) Poison(module.device_weights);
}

void FakeEngine::FinishStep() {
  EXPECT_EQ(next_use_, spec_.step.size()) << "uses are missing";
  EXPECT_EQ(held(), 0U);
  for (size_t i = 0; i < modules_.size(); ++i) {
    EXPECT_EQ(modules_[i].reductions, 1) << spec_.modules[i].name;
    modules_[i].reductions = 0;
  }
  next_use_ = 0;
  losses_zeroed_ = false;
  calls_.clear();
}

Result<const std::byte*> FakeEngine::Acquire(zero::ModuleId id) {
  if (next_use_ == failing_acquire_) return MakeError(ErrorCode::kIo, "made to fail");
  const std::string& name = spec_.modules[offload::Index(id)].name;
  const bool in_order = next_use_ < spec_.step.size() && spec_.step[next_use_].module == id;
  EXPECT_TRUE(in_order) << "use " << next_use_ << " is of " << name;
  ++next_use_;
  calls_.push_back("acquire " + name);
  EXPECT_FALSE(module(id).held);
  module(id).held = true;
  Convert(module(id));
  stream_->CopyToDevice(module(id).device_weights.data(), module(id).converted.data(),
                        module(id).device_weights.size());
  return static_cast<const std::byte*>(module(id).device_weights.data());
}

Status FakeEngine::AddGradients(zero::ModuleId id) {
  EXPECT_TRUE(module(id).accumulating) << "a gradient was added that was not asked for";
  return {};
}

double* FakeEngine::Losses(uint64_t micro_batches) {
  losses_of_step_ = micro_batches;
  if (!std::exchange(losses_zeroed_, true)) stream_->Zero(losses_.data(), losses_.size());
  return losses_.as<double>();
}

void FakeEngine::ShareLosses(std::function<void(std::span<const double> losses)> arrived) {
  stream_->CopyToHost(reinterpret_cast<std::byte*>(host_losses_.data()), losses_.data(),
                      losses_.size());
  stream_->Call([this, arrived = std::move(arrived)] {
    arrived(std::span(host_losses_).first(losses_of_step_));
  });
}

void FakeEngine::Release(zero::ModuleId id) {
  calls_.push_back("release " + spec_.modules[offload::Index(id)].name);
  EXPECT_TRUE(module(id).held);
  module(id).held = false;
  Poison(module(id).device_weights);
}

Result<float*> FakeEngine::Gradients(zero::ModuleId id) {
  Module& module = this->module(id);
  EXPECT_EQ(module.reductions, 0) << "after the reduction";
  if (module.accumulating && keeps_parts_apart_) {
    module.first_part.resize(module.gradients.size());
    stream_->CopyToHost(reinterpret_cast<std::byte*>(module.first_part.data()),
                        module.device_gradients.data(), module.device_gradients.size());
  }
  if (!module.accumulating || keeps_parts_apart_) {
    stream_->Zero(module.device_gradients.data(), module.device_gradients.size());
    module.accumulating = true;
  }
  return module.device_gradients.as<float>();
}

Status FakeEngine::ReduceGradients(zero::ModuleId id) {
  Module& module = this->module(id);
  calls_.push_back("reduce " + spec_.modules[offload::Index(id)].name);
  EXPECT_TRUE(module.accumulating);
  module.accumulating = false;
  ++module.reductions;
  stream_->CopyToHost(reinterpret_cast<std::byte*>(module.gradients.data()),
                      module.device_gradients.data(), module.device_gradients.size());
  Poison(module.device_gradients);
  return {};
}

size_t FakeEngine::held() const {
  return static_cast<size_t>(
      std::count_if(modules_.begin(), modules_.end(), [](const Module& m) { return m.held; }));
}

std::span<float> FakeEngine::weights(const std::string& tensor) {
  return Tensor(tensor, &Module::weights);
}

std::span<const float> FakeEngine::gradients(const std::string& tensor) {
  return Tensor(tensor, &Module::gradients);
}

std::span<const float> FakeEngine::first_part(const std::string& tensor) {
  return Tensor(tensor, &Module::first_part);
}

std::span<float> FakeEngine::Tensor(const std::string& name, std::vector<float> Module::*flat) {
  for (size_t i = 0; i < modules_.size(); ++i) {
    for (const offload::TensorLayout& tensor : layout_.model.modules[i].tensors) {
      if (tensor.name != name) continue;
      const std::span<float> all(modules_[i].*flat);
      return all.empty() ? all : all.subspan(tensor.offset, tensor.elements);
    }
  }
  ADD_FAILURE() << "no tensor " << name;
  return {};
}

std::vector<std::string> FakeEngine::tensor_names() const {
  std::vector<std::string> names;
  for (const zero::ModuleSpec& module : spec_.modules) {
    for (const zero::TensorSpec& tensor : module.tensors) names.push_back(tensor.name);
  }
  return names;
}

void FakeEngine::Convert(Module& module) {
  // Weights change between steps only: an earlier copy in flight reads the same bytes.
  std::vector<std::byte> converted(module.converted.size());
  for (size_t i = 0; i < module.weights.size(); ++i) {
    const kernels::BFloat16 rounded = kernels::RoundToBFloat16(module.weights[i]);
    const void* const value = dtype_ == DType::kFloat32
                                  ? static_cast<const void*>(&module.weights[i])
                                  : static_cast<const void*>(&rounded.bits);
    const uint64_t size = SizeOf(dtype_).value;
    std::memcpy(converted.data() + i * size, value, size);
  }
  if (converted != module.converted) module.converted = std::move(converted);
}

void FakeEngine::Poison(const device::DeviceBuffer& buffer) {
  stream_->CopyToDevice(buffer.data(), poison_.data(), buffer.size());
}

}  // namespace penstock::train
