#include "train/plan/model_cost.h"

#include "sizing/step_work.h"

namespace penstock::train {
namespace {

StepWork WorkOf(const ModelCost& cost, uint64_t tokens) {
  return MetricsWork({.parameters = cost.parameters,
                      .outside_layers = cost.parameters - cost.layer_parameters,
                      .attentions = cost.layers,
                      .attention_width = cost.width},
                     cost.sequence, static_cast<double>(tokens));
}

uint64_t ParametersOf(const zero::ModuleSpec& module) {
  uint64_t parameters = 0;
  for (const zero::TensorSpec& tensor : module.tensors) parameters += tensor.elements();
  return parameters;
}

}  // namespace

ModelCost CostOf(const ModelDescription& model, const zero::ModelSpec& spec, uint64_t sequence) {
  const ModelSizes sizes = model.sizes();
  ModelCost cost{.layers = sizes.layers, .width = sizes.width, .sequence = sequence};
  for (const zero::ModuleSpec& module : spec.modules) {
    const uint64_t parameters = ParametersOf(module);
    cost.parameters += parameters;
    if (module.repeated) cost.layer_parameters += parameters;
  }
  return cost;
}

double ModelCost::FlopsPerStep(uint64_t tokens) const { return WorkOf(*this, tokens).model; }

double ModelCost::HardwareFlopsPerStep(uint64_t tokens) const {
  return WorkOf(*this, tokens).hardware;
}

}  // namespace penstock::train
