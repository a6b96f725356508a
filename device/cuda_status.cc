#include "device/cuda_status.h"

#include <cuda_runtime_api.h>

namespace penstock::device {

Error CudaError(int error, const std::string& doing) {
  const auto code = static_cast<cudaError_t>(error);
  const bool memory = code == cudaErrorMemoryAllocation;
  return MakeError(memory ? ErrorCode::kOutOfMemory : ErrorCode::kUnavailable, "cuda: {}: {} ({})",
                   doing, cudaGetErrorString(code), cudaGetErrorName(code));
}

}  // namespace penstock::device
