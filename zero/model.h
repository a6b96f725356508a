// Describes a model for the engine: its modules, their tensors, and the order in which a step uses
// them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/units.h"
#include "kernels/state/optimizer.h"
#include "offload/layout.h"

namespace penstock::zero {

using offload::ModuleId;

/// Tensors that are stored and updated alike.
struct GroupSpec {
  std::string name;
  bool weight_decay = true;
  bool frozen = false;          ///< never updated; such groups come after all others
  std::optional<DType> weight;  ///< dtype of the weights; none: the configuration's
  /// The rule's hyperparameters; none: the configuration's, with `weight_decay`.
  std::optional<kernels::OptimizerHyperparameters> hyper;
  double lr_factor = 1;  ///< factor on the step's learning rate
  /// The learning rate of the next update, where the caller sets one for each group; none: the
  /// step's times lr_factor.
  std::optional<double> lr;
};

/// Returns a group with weight decay, and one without for biases and norm weights: offload::kDecay
/// and kNoDecay.
std::vector<GroupSpec> DecayGroupSpecs();

struct TensorSpec {
  std::string name;             ///< unique in the model
  std::vector<uint64_t> shape;  ///< row-major
  offload::GroupId group = offload::kDecay;

  /// More than 64 bits count are the most that they do.
  uint64_t elements() const {
    uint64_t product = 1;
    for (const uint64_t size : shape) product = SaturatingMultiply(product, size);
    return product;
  }
};

struct ModuleSpec {
  std::string name;
  std::vector<TensorSpec> tensors;
  /// Whether the module is one of a sequence that is used one at a time (a transformer's layers).
  /// Such modules share device memory; the others keep their own.
  bool repeated = false;
};

/// One acquire … release of a module within a step.
struct ModuleUse {
  ModuleId module{};
  bool backward = false;
};

/// The order of a step, from which schedules are planned.
struct StepOrder {
  std::vector<ModuleUse> uses;
  std::vector<ModuleId> gradients;
};

struct ModelSpec {
  std::vector<GroupSpec> groups = DecayGroupSpecs();
  std::vector<ModuleSpec> modules;
  /// Every use of a step, in order, each module at least once. Modules may be held together
  /// (acquired before others are released). Empty: the initial order of zero/plan/use_order.h,
  /// until a step was recorded.
  std::vector<ModuleUse> step;
  /// The caller computes, and gives whole gradients, rounded to the dtype of the weights: none are
  /// added up by the engine, and it is told no losses.
  bool gives_gradients = false;
  /// Each module once: the order in which their gradients are complete and reduced. May be empty,
  /// too.
  std::vector<ModuleId> gradients;
};

}  // namespace penstock::zero
