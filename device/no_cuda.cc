// Replaces the CUDA device in builds without it.
#include <memory>

#include "device/device.h"

namespace penstock::device {
namespace {

Error NoCuda() {
  return MakeError(ErrorCode::kUnavailable,
                   "this build has no CUDA; use --device cpu, or build with -DPENSTOCK_CUDA=ON and "
                   "the CUDA toolkit");
}

}  // namespace

Result<std::unique_ptr<Device>> CreateCudaDevice(const DeviceOptions&) { return NoCuda(); }

Result<Bytes> FreeCudaMemory() { return NoCuda(); }

int BuiltCudaVersion() { return 0; }

}  // namespace penstock::device
