#include "tests/train/gpt2_fake_engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/dtype.h"

namespace penstock::train {
namespace {

constexpr std::byte kPoison{0xff};  // NaN in fp32 and in bf16

uint64_t Place(offload::ModuleLayout& module, uint64_t begin, offload::ParameterGroup group) {
  for (offload::TensorLayout& tensor : module.tensors) {
    if (tensor.group != group) continue;
    tensor.offset = begin;
    begin += tensor.elements;
  }
  return (begin + kBlockElements - 1) / kBlockElements * kBlockElements;
}

offload::ModuleLayout LayoutOf(const zero::ModuleSpec& spec) {
  offload::ModuleLayout layout{.name = spec.name};
  for (const zero::TensorSpec& tensor : spec.tensors) {
    uint64_t elements = 1;
    for (const uint64_t extent : tensor.shape) elements *= extent;
    const auto group =
        tensor.weight_decay ? offload::ParameterGroup::kDecay : offload::ParameterGroup::kNoDecay;
    layout.tensors.push_back({tensor.name, tensor.shape, group, 0, elements});
  }
  const uint64_t decay_end = Place(layout, 0, offload::ParameterGroup::kDecay);
  layout.elements = Place(layout, decay_end, offload::ParameterGroup::kNoDecay);
  return layout;
}

}  // namespace

FakeEngine::FakeEngine(zero::ModelSpec spec, DType dtype, device::Device& device,
                       const zero::TensorSource& source)
    : spec_(std::move(spec)) {
  layout_.dtype = dtype;
  for (size_t i = 0; i < spec_.modules.size(); ++i) {
    layout_.modules.push_back(LayoutOf(spec_.modules[i]));
    const offload::ModuleLayout& layout = layout_.modules.back();
    Module& module = modules_.emplace_back();
    module.weights.resize(layout.elements);
    module.gradients.resize(layout.elements);
    module.converted.resize(layout_.WeightBytes(layout.elements).value);
    for (size_t t = 0; t < layout.tensors.size(); ++t) {
      const offload::TensorLayout& tensor = layout.tensors[t];
      const std::span<float> values(module.weights.data() + tensor.offset, tensor.elements);
      EXPECT_TRUE(source(static_cast<zero::ModuleId>(i), t, 0, values).ok());
    }
    module.device_weights =
        device.Allocate(layout_.WeightBytes(layout.elements), "weights").value();
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

void FakeEngine::Release(zero::ModuleId id) {
  calls_.push_back("release " + spec_.modules[offload::Index(id)].name);
  EXPECT_TRUE(module(id).held);
  module(id).held = false;
  Poison(module(id).device_weights);
}

float* FakeEngine::Gradients(zero::ModuleId id) {
  Module& module = this->module(id);
  EXPECT_EQ(module.reductions, 0) << "after the reduction";
  if (!module.accumulating) {
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

std::span<float> FakeEngine::Tensor(const std::string& name, std::vector<float> Module::*flat) {
  for (size_t i = 0; i < modules_.size(); ++i) {
    for (const offload::TensorLayout& tensor : layout_.modules[i].tensors) {
      if (tensor.name == name) {
        return std::span((modules_[i].*flat).data() + tensor.offset, tensor.elements);
      }
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

Status FakeEngine::NotForModels() {
  ADD_FAILURE() << "a model called what is the trainer's";
  return MakeError(ErrorCode::kInvalidArgument, "not for models");
}

void FakeEngine::Convert(Module& module) {
  // Weights change between steps only: an earlier copy in flight reads the same bytes.
  std::vector<std::byte> converted(module.converted.size());
  for (size_t i = 0; i < module.weights.size(); ++i) {
    const kernels::BFloat16 rounded = kernels::RoundToBFloat16(module.weights[i]);
    const void* const value = layout_.dtype == DType::kFloat32
                                  ? static_cast<const void*>(&module.weights[i])
                                  : static_cast<const void*>(&rounded.bits);
    const uint64_t size = SizeOf(layout_.dtype).value;
    std::memcpy(converted.data() + i * size, value, size);
  }
  if (converted != module.converted) module.converted = std::move(converted);
}

void FakeEngine::Poison(const device::DeviceBuffer& buffer) {
  stream_->CopyToDevice(buffer.data(), poison_.data(), buffer.size());
}

}  // namespace penstock::train
