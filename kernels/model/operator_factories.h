// The operators of each device, for users that must not depend on the libraries behind them.
#pragma once

#include <memory>

#include "base/result.h"
#include "kernels/model/model_operators.h"

namespace penstock::kernels {

/// Like OperatorScratch and CreateModelOperators, for the CPU device; kUnavailable in builds
/// without oneDNN.
Result<Bytes> CpuOperatorScratch(const OperatorOptions& options);
Result<std::unique_ptr<ModelOperators>> CreateCpuOperators(device::Device& device,
                                                           const OperatorOptions& options);

/// The same for the CUDA device; kUnavailable in builds without CUDA.
Result<Bytes> CudaOperatorScratch(const OperatorOptions& options);
Result<std::unique_ptr<ModelOperators>> CreateCudaOperators(device::Device& device,
                                                            const OperatorOptions& options);

}  // namespace penstock::kernels
