#include "kernels/state/state_operators.h"

#include "kernels/state/state_operator_factories.h"

namespace penstock::kernels {

Result<std::unique_ptr<StateOperators>> CreateStateOperators(device::Kind kind, int threads) {
  return kind == device::Kind::kCuda ? CreateCudaStateOperators()
                                     : CreateCpuStateOperators(threads);
}

}  // namespace penstock::kernels
