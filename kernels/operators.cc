#include "kernels/operators.h"

#include "kernels/operator_factories.h"

namespace penstock::kernels {

Result<Bytes> OperatorScratch(device::Kind kind, const OperatorOptions& options) {
  return kind == device::Kind::kCuda ? CudaOperatorScratch(options) : CpuOperatorScratch(options);
}

Result<std::unique_ptr<Operators>> CreateOperators(device::Device& device,
                                                   const OperatorOptions& options) {
  return device.kind() == device::Kind::kCuda ? CreateCudaOperators(device, options)
                                              : CreateCpuOperators(device, options);
}

}  // namespace penstock::kernels
