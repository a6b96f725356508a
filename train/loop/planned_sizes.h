// What `penstock plan` says by the arithmetic of others: DeepSpeed's estimates, and topologies of a
// cluster (docs/sizing.md).
//
// Threads: any.
#pragma once

#include <string>

#include "base/result.h"
#include "train/loop/plan_command.h"

namespace penstock::train {

/// Return the output for stdout. Errors: of the model; of the table of topologies.
Result<std::string> ReportDeepSpeed(const PlanCommand& command);
Result<std::string> ReportTopologies(const PlanCommand& command);

}  // namespace penstock::train
