#include "kernels/operators.h"

#include "kernels/cpu_operators.h"

namespace penstock::kernels {
namespace {

Error NotImplemented(device::Kind kind) {
  return MakeError(ErrorCode::kUnavailable,
                   "operators: {} operators are not implemented yet; use --device cpu",
                   device::ToString(kind));
}

}  // namespace

Result<Bytes> OperatorScratch(device::Kind kind, const OperatorOptions& options) {
  if (kind != device::Kind::kCpu) return NotImplemented(kind);
  return CpuOperatorScratch(options, BestBf16Arithmetic());
}

Result<std::unique_ptr<Operators>> CreateOperators(device::Device& device,
                                                   const OperatorOptions& options) {
  if (device.kind() != device::Kind::kCpu) return NotImplemented(device.kind());
  return CreateCpuOperators(device, options, BestBf16Arithmetic());
}

}  // namespace penstock::kernels
