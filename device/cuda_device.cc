// Where the CUDA device is made. Until it is, the function says what this build and machine lack.
#include <memory>

#include "device/device.h"

#ifdef PENSTOCK_HAS_CUDA
#include <cuda_runtime_api.h>
#endif

namespace penstock::device {

#ifdef PENSTOCK_HAS_CUDA

Result<std::unique_ptr<Device>> CreateCudaDevice([[maybe_unused]] const DeviceOptions& options) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) {
    return MakeError(ErrorCode::kUnavailable, "no CUDA device: {}; use --device cpu",
                     cudaGetErrorString(error));
  }
  if (count == 0) {
    return MakeError(ErrorCode::kUnavailable,
                     "no CUDA device: the driver lists none; use --device cpu");
  }
  return MakeError(ErrorCode::kUnavailable,
                   "a GPU is there, but penstock's CUDA device is not implemented yet; use "
                   "--device cpu");
}

#else

Result<std::unique_ptr<Device>> CreateCudaDevice([[maybe_unused]] const DeviceOptions& options) {
  return MakeError(ErrorCode::kUnavailable,
                   "this build has no CUDA; use --device cpu, or build with -DPENSTOCK_CUDA=ON and "
                   "the CUDA toolkit");
}

#endif

}  // namespace penstock::device
