// The state operators of each device, for users that must not depend on the libraries behind them.
#pragma once

#include <memory>

#include "base/result.h"
#include "kernels/state/state_operators.h"

namespace penstock::kernels {

/// See CreateStateOperators.
Result<std::unique_ptr<StateOperators>> CreateCpuStateOperators(int threads);

/// The same for the CUDA device; kUnavailable in builds without CUDA.
Result<std::unique_ptr<StateOperators>> CreateCudaStateOperators();

}  // namespace penstock::kernels
