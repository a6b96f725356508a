// The scalars that a caller gives each parameter group with each step.
//
// Threads: any.
#pragma once

#include "base/result.h"
#include "kernels/state/optimizer.h"

namespace penstock::front {

/// The scalars of a parameter group in one step.
struct GroupScalars {
  double lr = 0;
  double beta1 = 0;
  double beta2 = 0;
  double eps = 0;
  double weight_decay = 0;
};
/// Returns the rule's hyperparameters with those of a group. Errors: kInvalidArgument for values
/// that the rule does not accept.
Result<kernels::OptimizerHyperparameters> WithScalars(kernels::OptimizerHyperparameters hyper,
                                                      const GroupScalars& scalars);

}  // namespace penstock::front
