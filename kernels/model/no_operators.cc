// In place of all operators, in the program of the Python package, which plans models and computes
// none.
#include "kernels/model/operator_factories.h"

namespace penstock::kernels {
namespace {

Error NoOperators() {
  return MakeError(ErrorCode::kUnavailable,
                   "operators: the program of the Python package has none; build penstock from its "
                   "source");
}

}  // namespace

Result<Bytes> CpuOperatorScratch(const OperatorOptions&) { return NoOperators(); }

Result<Bytes> CudaOperatorScratch(const OperatorOptions&) { return NoOperators(); }

Result<std::unique_ptr<ModelOperators>> CreateCpuOperators(device::Device&,
                                                           const OperatorOptions&) {
  return NoOperators();
}

Result<std::unique_ptr<ModelOperators>> CreateCudaOperators(device::Device&,
                                                            const OperatorOptions&) {
  return NoOperators();
}

}  // namespace penstock::kernels
