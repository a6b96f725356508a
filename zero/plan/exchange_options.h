// How ranks exchange the gradients of a step.
//
// Plain values.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "config/config.h"

namespace penstock::zero {

struct ExchangeOptions {
  uint32_t repeated_buffers = 1;  ///< 1 or 2 whole gradients of repeated modules
  /// What is sent: fp32, or gradients rounded to this. The memory is the same.
  DType dtype = DType::kFloat32;
  config::GradientOrder order = config::GradientOrder::kGlobal;  ///< the memory is the same

  static ExchangeOptions Of(const config::Config& config, uint32_t repeated_buffers) {
    return {.repeated_buffers = repeated_buffers,
            .dtype = config.communication,
            .order = config.gradient_order};
  }
  /// Returns how often a module's gradient is sent in a step of so many micro-batches of a rank.
  uint64_t ExchangesPerStep(uint64_t micro_batches) const {
    return order == config::GradientOrder::kGlobal ? micro_batches : 1;
  }
};

}  // namespace penstock::zero
