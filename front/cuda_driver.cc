#include "front/cuda_driver.h"

#include <array>

#include "base/shared_library.h"

namespace penstock::front {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";

constexpr const char* kNewer = "install a newer driver";

}  // namespace

Status CudaDriver::Check(CuResult result, const std::string& doing) const {
  if (result == kCuSuccess) return {};
  const char* name = nullptr;
  if (get_error_name(result, &name) != kCuSuccess || name == nullptr) name = "an unknown error";
  const bool memory = result == kCuOutOfMemory;
  return MakeError(memory ? ErrorCode::kOutOfMemory : ErrorCode::kUnavailable, "cuda: {}: {} ({})",
                   doing, name, result);
}

Result<CudaDriver> LoadCudaDriver() {
  PENSTOCK_ASSIGN(const SharedLibrary library,
                  SharedLibrary::Load(kLibrary, "cuda: memory of a GPU needs CUDA's driver",
                                      "install it, or give memory of the host"));
  CudaDriver driver{};
  PENSTOCK_TRY(library.Find("cuCtxGetCurrent", kNewer, driver.ctx_get_current));
  PENSTOCK_TRY(library.Find("cuCtxSetCurrent", kNewer, driver.ctx_set_current));
  PENSTOCK_TRY(library.Find("cuCtxSynchronize", kNewer, driver.ctx_synchronize));
  PENSTOCK_TRY(library.Find("cuCtxGetDevice", kNewer, driver.ctx_get_device));
  PENSTOCK_TRY(library.Find("cuDeviceGetPCIBusId", kNewer, driver.device_get_pci_bus_id));
  PENSTOCK_TRY(library.Find("cuStreamGetCtx", kNewer, driver.stream_get_context));
  PENSTOCK_TRY(library.Find("cuMemHostRegister_v2", kNewer, driver.mem_host_register));
  PENSTOCK_TRY(library.Find("cuMemHostUnregister", kNewer, driver.mem_host_unregister));
  PENSTOCK_TRY(library.Find("cuMemcpyHtoDAsync_v2", kNewer, driver.memcpy_to_device));
  PENSTOCK_TRY(library.Find("cuMemcpyDtoHAsync_v2", kNewer, driver.memcpy_to_host));
  PENSTOCK_TRY(library.Find("cuEventCreate", kNewer, driver.event_create));
  PENSTOCK_TRY(library.Find("cuEventRecord", kNewer, driver.event_record));
  PENSTOCK_TRY(library.Find("cuEventSynchronize", kNewer, driver.event_synchronize));
  PENSTOCK_TRY(library.Find("cuEventDestroy_v2", kNewer, driver.event_destroy));
  PENSTOCK_TRY(library.Find("cuGetErrorName", kNewer, driver.get_error_name));
  return driver;
}

std::string CurrentPciBusId() {
  const Result<CudaDriver> driver = LoadCudaDriver();
  if (!driver.ok()) return {};
  CuContext context = nullptr;
  CuDevice device = 0;
  std::array<char, 32> id{};
  const bool known = driver->ctx_get_current(&context) == kCuSuccess && context != nullptr &&
                     driver->ctx_get_device(&device) == kCuSuccess &&
                     driver->device_get_pci_bus_id(id.data(), id.size(), device) == kCuSuccess;
  return known ? id.data() : "";
}

}  // namespace penstock::front
