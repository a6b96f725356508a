// A model of equal layers that are used forwards and then backwards.
#pragma once

#include <cstdint>
#include <string>

#include "zero/model.h"

namespace penstock::sim {

/// `count` layers of `elements` each, which share the device's slots.
inline zero::ModelSpec EqualLayers(uint32_t count, uint64_t elements) {
  zero::ModelSpec model;
  for (uint32_t i = 0; i < count; ++i) {
    const std::string name = "layer." + std::to_string(i);
    model.modules.push_back(
        {.name = name, .tensors = {{name + ".weight", {elements}}}, .repeated = true});
    model.step.push_back({zero::ModuleId{i}, false});
  }
  for (uint32_t i = count; i-- > 0;) {
    model.step.push_back({zero::ModuleId{i}, true});
    model.gradients.push_back(zero::ModuleId{i});
  }
  return model;
}

}  // namespace penstock::sim
