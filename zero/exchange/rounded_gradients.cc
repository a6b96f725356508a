#include "zero/exchange/rounded_gradients.h"

#include <algorithm>
#include <utility>

namespace penstock::zero {
namespace {

/// Elements that are rounded and added at once, at most. Which ones are changes no bit.
constexpr uint64_t kRoundedPiece = uint64_t{1} << 20;

std::vector<uint64_t> ElementsOf(const offload::ShardLayout& layout) {
  std::vector<uint64_t> elements;
  for (const ModuleId id : offload::Ids<ModuleId>(layout.model.modules.size())) {
    elements.push_back(layout.model.TrainedElements(id));
  }
  return elements;
}

}  // namespace

bool RoundsMicroBatches(const config::Config& config) {
  return config.communication != DType::kFloat32 &&
         config.gradient_order == config::GradientOrder::kGlobal;
}

Bytes RoundedGradients::RoundedNeed(const offload::ShardLayout& layout, kernels::DType dtype) {
  return SizeOf(dtype) * std::min(kRoundedPiece, std::ranges::max(ElementsOf(layout)));
}

Result<std::unique_ptr<RoundedGradients>> RoundedGradients::Create(
    const ModelSpec& model, const offload::ShardLayout& layout, kernels::DType dtype,
    device::Device& device, kernels::StateOperators& operators) {
  std::unique_ptr<RoundedGradients> gradients(new RoundedGradients(dtype, operators));
  PENSTOCK_ASSIGN(gradients->parts_, DeviceGradients::Create(model, layout, device, operators));
  PENSTOCK_ASSIGN(gradients->sums_, DeviceGradients::Create(model, layout, device, operators));
  gradients->elements_ = ElementsOf(layout);
  PENSTOCK_ASSIGN(gradients->rounded_,
                  device.Allocate(RoundedNeed(layout, dtype), "a rounded piece of a gradient"));
  return gradients;
}

Result<float*> RoundedGradients::Buffer(ModuleId module, device::Stream& compute) {
  PENSTOCK_TRY(sums_->Buffer(module, compute).status());
  return parts_->Buffer(module, compute);
}

Status RoundedGradients::Add(ModuleId module, device::Stream& compute) {
  PENSTOCK_ASSIGN(const FinishedSums part, parts_->Finish(module, compute));
  PENSTOCK_ASSIGN(float* const sums, sums_->Buffer(module, compute));
  const uint64_t elements = elements_[offload::Index(module)];
  for (uint64_t done = 0; done < elements; done += kRoundedPiece) {
    const uint64_t piece = std::min(kRoundedPiece, elements - done);
    operators_.RoundGradients(compute, part.sums + done, dtype_, piece, rounded_.data());
    operators_.AddInOrder(compute, sums + done, piece,
                          {.data = rounded_.data(), .dtype = dtype_, .stride = piece, .count = 1});
  }
  return {};
}

Result<FinishedSums> RoundedGradients::Finish(ModuleId module, device::Stream& compute) {
  if (parts_->IsOpen(module)) PENSTOCK_TRY(Add(module, compute));
  return sums_->Finish(module, compute);
}

void RoundedGradients::EndStep() {
  parts_->EndStep();
  sums_->EndStep();
}

}  // namespace penstock::zero
