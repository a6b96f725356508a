#include "kernels/cuda_launch.cuh"

#include "base/check.h"
#include "device/cuda_status.h"

namespace penstock::kernels {

void LaunchKernel(device::CudaStream& stream, const char* what, const void* kernel,
                  const LaunchShape& shape, void** arguments) {
  if (shape.blocks == 0) return;
  PENSTOCK_CHECK(shape.blocks < uint64_t{1} << 31, "{} blocks for {}", shape.blocks, what);
  stream.Launch([&](cudaStream_t handle) -> Status {
    if (shape.shared > 0) {  // a launch that asks for much has to announce it
      PENSTOCK_TRY(device::CudaStatus(
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shape.shared)),
          "asking for {} bytes of shared memory for {}", shape.shared, what));
    }
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(shape.blocks));
    config.blockDim = shape.threads;
    config.dynamicSmemBytes = shape.shared;
    config.stream = handle;
    return device::CudaStatus(cudaLaunchKernelExC(&config, kernel, arguments), "launching {}",
                              what);
  });
}

}  // namespace penstock::kernels
