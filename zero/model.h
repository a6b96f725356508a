// What zero has to know of a model: its modules, their tensors, and in which order a step uses
// them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "offload/layout.h"

namespace penstock::zero {

using offload::ModuleId;

struct TensorSpec {
  std::string name;             ///< unique in the model
  std::vector<uint64_t> shape;  ///< row-major
  bool weight_decay = true;     ///< false for biases and norm weights
};

struct ModuleSpec {
  std::string name;
  std::vector<TensorSpec> tensors;
  /// One of a sequence of modules that are used one at a time (a transformer's layers): they share
  /// device memory. The others have their own throughout.
  bool repeated = false;
};

/// One acquire … release of a module within a step.
struct ModuleUse {
  ModuleId module{};
  bool backward = false;
};

struct ModelSpec {
  std::vector<ModuleSpec> modules;
  /// Every use of a step, in order: all forward uses come before all backward ones, and each module
  /// has at least one forward use. Modules may be held together (acquired before others are
  /// released).
  std::vector<ModuleUse> step;
  /// Each module once: the order in which their gradients are complete and reduced.
  std::vector<ModuleId> gradients;
};

}  // namespace penstock::zero
