#include "train/plan/batch_rampup.h"

namespace penstock::train {

std::optional<BatchGrowth> GrowthOf(const config::Config& config) {
  if (!config.rampup) return {};
  return BatchGrowth{.start = config.rampup->start,
                     .increment = config.rampup->increment,
                     .samples = config.rampup->samples};
}

BatchRampup RampupOf(const config::Config& config) {
  return BatchRampup(config.train_batch_size, GrowthOf(config));
}

}  // namespace penstock::train
