#include "train/plan/compute_cost.h"

namespace penstock::train {
namespace {

/// Without the padding of its flat index.
double ParametersOf(const offload::ModuleLayout& module) {
  uint64_t parameters = 0;
  for (const offload::TensorLayout& tensor : module.tensors) parameters += tensor.elements;
  return static_cast<double>(parameters);
}

}  // namespace

std::vector<double> OperationsOfUses(const PlannedTraining& training,
                                     const offload::ModelLayout& layout) {
  const BatchShape& shape = training.shape;
  const auto tokens = static_cast<double>(shape.micro_batch * shape.micro_batches * shape.sequence);
  const double attention =
      static_cast<double>(shape.sequence) * static_cast<double>(training.model.sizes().width);
  std::vector<double> operations;
  for (const zero::ModuleUse& use : training.spec.step) {
    const bool layer = training.spec.modules[offload::Index(use.module)].repeated;
    const double parameters = ParametersOf(layout.module(use.module));
    double of_token = 0;
    if (layer) {
      of_token = use.backward ? 6 * parameters + 12 * attention : 2 * parameters + 4 * attention;
    } else if (use.backward) {
      of_token = 6 * parameters;
    }
    operations.push_back(tokens * of_token);
  }
  return operations;
}

std::vector<sim::Seconds> ComputeOfUses(const PlannedTraining& training,
                                        const offload::ModelLayout& layout,
                                        const MachineSpeed& speed) {
  std::vector<sim::Seconds> seconds = OperationsOfUses(training, layout);
  for (size_t i = 0; i < seconds.size(); ++i) {
    const offload::ModuleId module = training.spec.step[i].module;
    const bool layer = training.spec.modules[offload::Index(module)].repeated;
    const std::optional<double>& rate = layer ? speed.layer_flops : speed.head_flops;
    seconds[i] = rate ? seconds[i] / *rate : 0;
  }
  return seconds;
}

}  // namespace penstock::train
