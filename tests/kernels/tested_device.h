// What the tests of work on a device run on. An executable has one implementation of these
// functions: tested_device_cpu.cc or tested_device_cuda.cc.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "device/device.h"

namespace penstock::kernels {

Result<std::unique_ptr<device::Device>> CreateTestedDevice(Bytes memory);
/// Why this machine has no such device; nothing where it has.
std::optional<std::string> MissingDevice();

}  // namespace penstock::kernels
