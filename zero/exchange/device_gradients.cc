#include "zero/exchange/device_gradients.h"

#include "zero/plan/schedule_builder.h"

namespace penstock::zero {

using offload::Index;

Result<std::unique_ptr<DeviceGradients>> DeviceGradients::Create(
    const ModelSpec& model, const offload::ShardLayout& layout, device::Device& device,
    kernels::StateOperators& operators) {
  std::unique_ptr<DeviceGradients> gradients(new DeviceGradients(operators));
  const auto allocate = [&](uint64_t elements) -> Status {
    PENSTOCK_ASSIGN(device::DeviceBuffer buffer,
                    device.Allocate(Bytes{sizeof(float)} * elements, "sums of gradients"));
    gradients->buffers_.push_back(std::move(buffer));
    gradients->open_.emplace_back();
    return {};
  };
  std::optional<size_t> shared;
  for (const ModuleId id : offload::Ids<ModuleId>(model.modules.size())) {
    const ModuleSpec& module = model.modules[Index(id)];
    const uint64_t elements = layout.model.TrainedElements(id);
    if (!module.repeated || !shared) {
      PENSTOCK_TRY(
          allocate(module.repeated ? CountRepeated(model, layout).trained_elements : elements));
      if (module.repeated) shared = gradients->buffers_.size() - 1;
    }
    gradients->modules_.push_back(
        {.name = module.name,
         .size = Bytes{sizeof(float)} * elements,
         .buffer = module.repeated ? *shared : gradients->buffers_.size() - 1});
  }
  return gradients;
}

Result<float*> DeviceGradients::Buffer(ModuleId module, device::Stream& compute) {
  const Module& entry = modules_[Index(module)];
  const device::DeviceBuffer& buffer = buffers_[entry.buffer];
  std::optional<ModuleId>& open = open_[entry.buffer];
  if (open && *open != module) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "module {} has gradients while those of module {} are not reduced; repeated "
                     "modules share one buffer: reduce the gradients of one before the next",
                     entry.name, modules_[Index(*open)].name);
  }
  if (!open) compute.Zero(buffer.data(), entry.size);
  open = module;
  return buffer.as<float>();
}

bool DeviceGradients::IsOpen(ModuleId module) const {
  return open_[modules_[Index(module)].buffer] == module;
}

Status DeviceGradients::CheckOpen(ModuleId module) const {
  if (IsOpen(module)) return {};
  return MakeError(ErrorCode::kInvalidArgument,
                   "the gradients of module {} were reduced, and it has none in this step; ask for "
                   "its sums and compute them first",
                   modules_[Index(module)].name);
}

Status DeviceGradients::Add(ModuleId module, device::Stream&) { return CheckOpen(module); }

Result<FinishedSums> DeviceGradients::Finish(ModuleId module, device::Stream& compute) {
  PENSTOCK_TRY(CheckOpen(module));
  const size_t buffer = modules_[Index(module)].buffer;
  open_[buffer].reset();
  return FinishedSums{
      .sums = buffers_[buffer].as<float>(), .stream = &compute, .operators = &operators_};
}

void DeviceGradients::EndStep() {
  for (std::optional<ModuleId>& open : open_) open.reset();
}

}  // namespace penstock::zero
