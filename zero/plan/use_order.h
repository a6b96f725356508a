// Knows in which order steps use modules: the planned order, and what a step does.
//
// Schedules are planned from the order that the model declares. If it declares none, they are
// planned from the order of its modules, forwards and then backwards. A step may deviate. Its order
// is recorded, and planned from the next step on; in a recorded order, a module's uses after its
// first count as backward. A plain value.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/result.h"
#include "zero/model.h"

namespace penstock::zero {

/// Returns `model` with an order of use and of gradients, if it declares none. Errors:
/// kInvalidArgument for an order that leaves a module out or names an unknown one, for an order of
/// gradients that names a module twice, and for a trained group that comes after a frozen one.
Result<ModelSpec> WithOrder(ModelSpec model);

class UseOrder {
 public:
  /// Starts with the order of a model that has one.
  explicit UseOrder(const ModelSpec& model)
      : planned_{model.step, model.gradients}, modules_(model.modules.size()) {}

  void BeginStep();
  void Used(ModuleId module);
  void Reduced(ModuleId module) { recorded_.gradients.push_back(module); }
  /// Ends a step. Returns the order that is planned from now on, if it is new. Modules that the
  /// step left out come last, because a plan has a place for each.
  std::optional<StepOrder> EndStep();

  /// Returns the number of uses that were not the planned ones, in all steps.
  uint64_t late() const { return late_; }

 private:
  StepOrder planned_;
  StepOrder recorded_;
  size_t modules_ = 0;
  size_t next_ = 0;  ///< the planned use that is to come in this step
  uint64_t late_ = 0;
};

}  // namespace penstock::zero
