// Replaces the CUDA device's state operators in builds without CUDA.
#include "kernels/state/state_operator_factories.h"

namespace penstock::kernels {

Result<std::unique_ptr<StateOperators>> CreateCudaStateOperators() {
  return MakeError(ErrorCode::kUnavailable,
                   "state operators: this build has no CUDA; use --device cpu, or build with "
                   "-DPENSTOCK_CUDA=ON and the CUDA toolkit");
}

}  // namespace penstock::kernels
