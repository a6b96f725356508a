// What `penstock plan` says by the arithmetic of others: DeepSpeed's estimates, topologies of a
// cluster, shares of tensor parallelism, and the length of a training (docs/sizing.md).
//
// Threads: any.
#pragma once

#include <string>

#include "base/result.h"
#include "train/plan/plan_command.h"

namespace penstock::train {

/// Return the output for stdout. Errors: of the model, which needs a shape but for
/// DeepSpeed's estimates; of the config; of the table of topologies.
Result<std::string> ReportDeepSpeed(const PlanCommand& command);
Result<std::string> ReportTopologies(const PlanCommand& command);
Result<std::string> ReportTensorShares(const PlanCommand& command);
/// Without a config: from the model's size and the speed of its GPUs, which were given.
Result<std::string> ReportTraining(const PlanCommand& command);

}  // namespace penstock::train
