// What zero has to know of a model: its modules, their tensors, and in which order a step uses
// them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "kernels/optimizer.h"
#include "offload/layout.h"

namespace penstock::zero {

using offload::ModuleId;

/// Tensors that are stored and updated alike.
struct GroupSpec {
  std::string name;
  bool weight_decay = true;
  bool frozen = false;          ///< never updated; such groups come behind all others
  std::optional<DType> weight;  ///< of the weights; none: the configuration's
  /// The rule's hyperparameters; none: the configuration's, with `weight_decay`.
  std::optional<kernels::OptimizerHyperparameters> hyper;
  double lr_factor = 1;  ///< of the step's learning rate
};

/// With weight decay, and for biases and norm weights without: offload::kDecay and kNoDecay.
std::vector<GroupSpec> DecayGroupSpecs();

struct TensorSpec {
  std::string name;             ///< unique in the model
  std::vector<uint64_t> shape;  ///< row-major
  offload::GroupId group = offload::kDecay;
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
  std::vector<GroupSpec> groups = DecayGroupSpecs();
  std::vector<ModuleSpec> modules;
  /// Every use of a step, in order: all forward uses come before all backward ones, and each module
  /// has at least one forward use. Modules may be held together (acquired before others are
  /// released).
  std::vector<ModuleUse> step;
  /// Each module once: the order in which their gradients are complete and reduced.
  std::vector<ModuleId> gradients;
};

}  // namespace penstock::zero
