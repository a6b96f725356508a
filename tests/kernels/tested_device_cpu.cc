#include "tests/kernels/tested_device.h"

namespace penstock::kernels {

Result<std::unique_ptr<device::Device>> CreateTestedDevice(Bytes memory) {
  return device::CreateCpuDevice({.memory = memory});
}

std::optional<std::string> MissingDevice() { return std::nullopt; }

}  // namespace penstock::kernels
