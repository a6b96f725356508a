#include "zero/device_gradients.h"

#include <optional>

#include "base/check.h"
#include "zero/schedule_builder.h"

namespace penstock::zero {

Result<DeviceGradients> DeviceGradients::Create(const ModelSpec& model,
                                                const offload::ShardLayout& layout,
                                                device::Device& device) {
  PENSTOCK_CHECK(model.gradients.size() == model.modules.size(),
                 "{} modules and the order of {} gradients", model.modules.size(),
                 model.gradients.size());
  DeviceGradients gradients;
  gradients.order_ = model.gradients;
  const auto allocate = [&](uint64_t elements) -> Status {
    PENSTOCK_ASSIGN(device::DeviceBuffer buffer,
                    device.Allocate(Bytes{sizeof(float)} * elements, "sums of gradients"));
    gradients.buffers_.push_back(std::move(buffer));
    gradients.taken_.push_back(false);
    return {};
  };
  std::optional<size_t> shared;
  for (const ModuleId id : offload::Ids<ModuleId>(model.modules.size())) {
    const bool repeated = model.modules[offload::Index(id)].repeated;
    const uint64_t elements = layout.model.TrainedElements(id);
    if (!repeated || !shared) {
      PENSTOCK_TRY(allocate(repeated ? CountRepeated(model, layout).trained_elements : elements));
      if (repeated) shared = gradients.buffers_.size() - 1;
    }
    gradients.modules_.push_back({.size = Bytes{sizeof(float)} * elements,
                                  .buffer = repeated ? *shared : gradients.buffers_.size() - 1});
  }
  return gradients;
}

float* DeviceGradients::Sums(ModuleId module, device::Stream& compute) {
  Module& entry = modules_[offload::Index(module)];
  const device::DeviceBuffer& buffer = buffers_[entry.buffer];
  if (!entry.open) {
    PENSTOCK_CHECK(!taken_[entry.buffer], "repeated modules have gradients one at a time");
    entry.open = true;
    taken_[entry.buffer] = true;
    compute.Zero(buffer.data(), entry.size);
  }
  return buffer.as<float>();
}

const float* DeviceGradients::Finish(ModuleId module) {
  Module& entry = modules_[offload::Index(module)];
  PENSTOCK_CHECK(entry.open, "gradients of a module were reduced that has none in this step");
  PENSTOCK_CHECK(missing() > 0 && order_[finished_] == module,
                 "gradients of module {} were reduced out of the order the model declared",
                 offload::Index(module));
  ++finished_;
  entry.open = false;
  taken_[entry.buffer] = false;
  return buffers_[entry.buffer].as<float>();
}

void DeviceGradients::NextStep() {
  PENSTOCK_CHECK(missing() == 0, "a step ended without the gradients of {} of {} modules",
                 missing(), order_.size());
  finished_ = 0;
}

}  // namespace penstock::zero
