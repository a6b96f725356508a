#include "train/plan/model_cost.h"

namespace penstock::train {
namespace {

/// Operations of the attention of all layers on one token, forward and backward.
double AttentionFlops(const ModelCost& cost) {
  return 12.0 * static_cast<double>(cost.layers) * static_cast<double>(cost.width) *
         static_cast<double>(cost.sequence);
}

}  // namespace

double ModelCost::FlopsPerStep(uint64_t tokens) const {
  const double per_token = 6.0 * static_cast<double>(parameters) + AttentionFlops(*this);
  return static_cast<double>(tokens) * per_token;
}

double ModelCost::HardwareFlopsPerStep(uint64_t tokens) const {
  const double of_layers = 6.0 * static_cast<double>(layer_parameters) + AttentionFlops(*this);
  return FlopsPerStep(tokens) + static_cast<double>(tokens) * of_layers / 3;
}

}  // namespace penstock::train
