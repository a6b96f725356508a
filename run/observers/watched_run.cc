#include "run/observers/watched_run.h"

#include "zero/lr_schedule.h"

namespace penstock::train {
namespace {

/// Biases and norm weights have one size.
bool IsMatrix(const offload::TensorLayout& tensor) { return tensor.shape.size() > 1; }

}  // namespace

WatchedRun WatchedRunOf(const config::Config& config, const zero::ModelSpec& model,
                        const offload::ModelLayout& layout) {
  WatchedRun watched{.facts = {.dtype = config.dtype}, .elements = {}};
  RunFacts& facts = watched.facts;
  facts.rate_key = zero::KeyOfRate(config.scheduler, 1);
  if (config.scheduler.type != config::SchedulerType::kNone) {
    facts.warmup_steps = static_cast<uint64_t>(config.scheduler.warmup_num_steps);
  }
  if (config.loss_scaling) {
    facts.dynamic_loss_scale = config.loss_scaling->loss_scale == 0;
    facts.loss_scale_window = static_cast<uint64_t>(config.loss_scaling->loss_scale_window);
  }
  uint32_t layer = 0;
  for (size_t m = 0; m < layout.modules.size(); ++m) {
    const bool repeated = model.modules[m].repeated;
    for (const offload::TensorLayout& tensor : layout.modules[m].tensors) {
      facts.tensors.push_back({.name = tensor.name,
                               .layer = repeated ? std::optional(layer) : std::nullopt,
                               .matrix = IsMatrix(tensor)});
      watched.elements.push_back(tensor.elements);
    }
    if (!repeated) continue;
    const std::string& name = layout.modules[m].name;
    facts.layers.push_back({.attention = name + " behind attention", .residual = name});
    ++layer;
  }
  return watched;
}

}  // namespace penstock::train
