// Replaces the CPU operators in builds without oneDNN.
#include "kernels/model/operator_factories.h"

namespace penstock::kernels {
namespace {

Error NoOneDnn() {
  return MakeError(ErrorCode::kUnavailable,
                   "operators: this build has no oneDNN and computes on a GPU only; use --device "
                   "cuda, or build with -DPENSTOCK_ONEDNN=ON");
}

}  // namespace

Result<Bytes> CpuOperatorScratch(const OperatorOptions&) { return NoOneDnn(); }

Result<std::unique_ptr<ModelOperators>> CreateCpuOperators(device::Device&,
                                                           const OperatorOptions&) {
  return NoOneDnn();
}

}  // namespace penstock::kernels
