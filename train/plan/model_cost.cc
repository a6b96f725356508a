#include "train/plan/model_cost.h"

namespace penstock::train {

double ModelCost::FlopsPerStep(uint64_t tokens) const {
  const double per_token = 6.0 * static_cast<double>(parameters) +
                           12.0 * static_cast<double>(layers) * static_cast<double>(width) *
                               static_cast<double>(sequence);
  return static_cast<double>(tokens) * per_token;
}

}  // namespace penstock::train
