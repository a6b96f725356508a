// Where a model is in its computation of a step.
#pragma once

#include <cstddef>
#include <cstdint>

#include "zero/model.h"

namespace penstock::train {

struct ComputePlace {
  bool backward = false;
  zero::ModuleId module{};
  uint64_t micro_batch = 0;
  const std::byte* weights = nullptr;  ///< of the module; tensors lie at layout offsets
  const float* gradients = nullptr;    ///< likewise, in backward
};

}  // namespace penstock::train
