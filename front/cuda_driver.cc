#include "front/cuda_driver.h"

#include <dlfcn.h>

namespace penstock::front {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";

template <typename Function>
Status Find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function != nullptr) return {};
  return MakeError(ErrorCode::kUnavailable, "cuda: {} has no {}; install a newer driver", kLibrary,
                   name);
}

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
  void* const library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const why =
        ::dlerror();  // NOLINT(concurrency-mt-unsafe): glibc's is a thread's own
    return MakeError(ErrorCode::kUnavailable,
                     "cuda: memory of a GPU needs CUDA's driver: {}; install it, or give memory of "
                     "the host",
                     why);
  }
  CudaDriver driver{};
  PENSTOCK_TRY(Find(library, "cuCtxGetCurrent", driver.ctx_get_current));
  PENSTOCK_TRY(Find(library, "cuCtxSetCurrent", driver.ctx_set_current));
  PENSTOCK_TRY(Find(library, "cuCtxSynchronize", driver.ctx_synchronize));
  PENSTOCK_TRY(Find(library, "cuMemHostRegister_v2", driver.mem_host_register));
  PENSTOCK_TRY(Find(library, "cuMemHostUnregister", driver.mem_host_unregister));
  PENSTOCK_TRY(Find(library, "cuMemcpyHtoDAsync_v2", driver.memcpy_to_device));
  PENSTOCK_TRY(Find(library, "cuMemcpyDtoHAsync_v2", driver.memcpy_to_host));
  PENSTOCK_TRY(Find(library, "cuEventCreate", driver.event_create));
  PENSTOCK_TRY(Find(library, "cuEventRecord", driver.event_record));
  PENSTOCK_TRY(Find(library, "cuEventSynchronize", driver.event_synchronize));
  PENSTOCK_TRY(Find(library, "cuEventDestroy_v2", driver.event_destroy));
  PENSTOCK_TRY(Find(library, "cuGetErrorName", driver.get_error_name));
  return driver;
}

}  // namespace penstock::front
