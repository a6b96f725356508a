// The operations of a model's step, from its sizes.
//
// Plain values.
#pragma once

#include <cstdint>

namespace penstock::train {

/// The quantities from which a step's speed is computed.
struct ModelCost {
  uint64_t parameters = 0;
  uint64_t layers = 0;
  uint64_t width = 0;  ///< of all attention heads of a layer together
  uint64_t sequence = 0;

  /// Returns the operations of forward and backward, without recomputation: tokens * (6 N + 12
  /// layers * width * T).
  double FlopsPerStep(uint64_t tokens) const;
};

}  // namespace penstock::train
