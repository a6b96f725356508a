#include "tests/kernels/tested_device.h"

namespace penstock::kernels {

Result<std::unique_ptr<device::Device>> CreateTestedDevice(Bytes memory) {
  return device::CreateCudaDevice({.memory = memory});
}

std::optional<std::string> MissingDevice() {
  const Result<Bytes> free = device::FreeCudaMemory();
  return free.ok() ? std::nullopt : std::optional(free.error().message);
}

}  // namespace penstock::kernels
