// Replaces the CUDA operators in builds without CUDA.
#include "kernels/model/operator_factories.h"

namespace penstock::kernels {
namespace {

Error NoCuda() {
  return MakeError(ErrorCode::kUnavailable,
                   "operators: this build has no CUDA; use --device cpu, or build with "
                   "-DPENSTOCK_CUDA=ON and the CUDA toolkit");
}

}  // namespace

Result<Bytes> CudaOperatorScratch(const OperatorOptions&) { return NoCuda(); }

Result<std::unique_ptr<ModelOperators>> CreateCudaOperators(device::Device&,
                                                            const OperatorOptions&) {
  return NoCuda();
}

}  // namespace penstock::kernels
