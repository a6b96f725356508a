// The operations of a model's step, from its sizes.
//
// Plain values.
#pragma once

#include <cstdint>

#include "train/models/model.h"
#include "zero/model.h"

namespace penstock::train {

/// The quantities from which a step's speed is computed.
struct ModelCost {
  uint64_t parameters = 0;
  uint64_t layers = 0;
  uint64_t width = 0;  ///< of all attention heads of a layer together
  uint64_t sequence = 0;
  uint64_t layer_parameters = 0;  ///< of all layers, whose forward is computed twice

  /// Returns the operations of forward and backward, without recomputation (MetricsWork).
  double FlopsPerStep(uint64_t tokens) const;
  /// Returns them with recomputation.
  double HardwareFlopsPerStep(uint64_t tokens) const;
};

/// Of a model as it is trained on rows of `sequence` tokens.
ModelCost CostOf(const ModelDescription& model, const zero::ModelSpec& spec, uint64_t sequence);

}  // namespace penstock::train
