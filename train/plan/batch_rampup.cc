#include "train/plan/batch_rampup.h"

#include <optional>

namespace penstock::train {

BatchRampup RampupOf(const config::Config& config) {
  std::optional<BatchGrowth> growth;
  if (config.rampup) {
    growth = {.start = config.rampup->start,
              .increment = config.rampup->increment,
              .samples = config.rampup->samples};
  }
  return BatchRampup(config.train_batch_size, growth);
}

}  // namespace penstock::train
