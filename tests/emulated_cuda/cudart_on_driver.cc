// CUDA's runtime on the stand-in for its driver: linked in place of libcudart, with our kernels
// compiled for the host, so that what libpenstock.so does with the one and with the other meets.
//
// A thread that has no context gets that in which the runtime was first used, as CUDA gives it the
// primary one.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>

#include "tests/emulated_cuda/cudart.h"
#include "tests/front/fake_cuda/fake_cuda.h"

namespace {

CUdeviceptr AddressOf(const void* data) { return reinterpret_cast<CUdeviceptr>(data); }

/// See the file.
void HaveContext() {
  static CUcontext primary = nullptr;
  CUcontext current = nullptr;
  static_cast<void>(cuCtxGetCurrent(&current));
  if (primary == nullptr) primary = current;
  if (current == nullptr) static_cast<void>(cuCtxSetCurrent(primary));
}

/// The runtime has other numbers for some errors.
cudaError_t Of(CUresult result) {
  return result == 201 ? cudaErrorDeviceUninitialized : static_cast<cudaError_t>(result);
}

template <typename Function, typename... Arguments>
cudaError_t Call(Function function, Arguments... arguments) {
  HaveContext();
  return Of(function(arguments...));
}

}  // namespace

namespace penstock::emulated_cuda {

cudaError_t Enqueue(cudaStream_t stream, std::function<void()> work) {
  auto kernel = std::make_unique<std::function<void()>>(std::move(work));
  const cudaError_t launched = Call(
      fake_cuda_launch, stream,
      +[](void* argument) {
        const std::unique_ptr<std::function<void()>> of(
            static_cast<std::function<void()>*>(argument));
        (*of)();
      },
      static_cast<void*>(kernel.get()));
  if (launched == cudaSuccess) static_cast<void>(kernel.release());
  return launched;
}
/// Not used.
void CountLaunch(const char*) {}
/// No kernel on states needs more than any GPU has.
size_t SharedMemoryOfBlock() { return size_t{48} << 10; }
bool IsOnDevice(const void* data, size_t size) {
  return fake_cuda_memory(AddressOf(data), size) != nullptr;
}

}  // namespace penstock::emulated_cuda

extern "C" {

const char* cudaGetErrorName(cudaError_t error) {
  const char* name = nullptr;
  return cuGetErrorName(error, &name) == 0 ? name : "cudaError";
}
const char* cudaGetErrorString(cudaError_t error) { return cudaGetErrorName(error); }

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  HaveContext();
  return device == 0 ? cudaSuccess : cudaErrorInvalidDevice;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::strcpy(properties->name, "the driver's stand-in");
  properties->multiProcessorCount = 1;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* text, int size, int) {
  std::snprintf(text, static_cast<size_t>(size), "ffff:ff:1f.7");
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  return Call(cuMemGetInfo_v2, free, total);
}
cudaError_t cudaMalloc(void** data, size_t size) {
  CUdeviceptr address = 0;
  const cudaError_t allocated = Call(cuMemAlloc_v2, &address, size);
  *data = reinterpret_cast<void*>(address);
  return allocated;
}
cudaError_t cudaFree(void* data) { return Call(cuMemFree_v2, AddressOf(data)); }
cudaError_t cudaHostRegister(void* data, size_t size, unsigned flags) {
  return Call(cuMemHostRegister_v2, data, size, flags);
}
cudaError_t cudaHostUnregister(void* data) { return Call(cuMemHostUnregister, data); }

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  switch (kind) {
    case cudaMemcpyHostToDevice:
      return Call(cuMemcpyHtoDAsync_v2, AddressOf(to), from, size, stream);
    case cudaMemcpyDeviceToHost:
      return Call(cuMemcpyDtoHAsync_v2, to, AddressOf(from), size, stream);
    case cudaMemcpyDeviceToDevice:
      return Call(cuMemcpyDtoDAsync_v2, AddressOf(to), AddressOf(from), size, stream);
    default:
      return cudaErrorInvalidMemcpyDirection;
  }
}
cudaError_t cudaMemsetAsync(void* data, int value, size_t size, cudaStream_t stream) {
  return Call(cuMemsetD8Async, AddressOf(data), static_cast<unsigned char>(value), size, stream);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return Call(cuStreamCreate, stream, flags);
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return Call(cuStreamSynchronize, stream); }
cudaError_t cudaStreamDestroy(cudaStream_t stream) { return Call(cuStreamDestroy_v2, stream); }
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  return Call(cuStreamWaitEvent, stream, event, flags);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return Call(fake_cuda_lenient_event, event);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) { return Call(cuEventDestroy_v2, event); }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return Call(cuEventRecord, event, stream);
}
cudaError_t cudaEventQuery(cudaEvent_t event) { return Call(cuEventQuery, event); }
cudaError_t cudaEventSynchronize(cudaEvent_t event) { return Call(cuEventSynchronize, event); }
/// Times are for meters, of which libpenstock.so has none.
cudaError_t cudaEventElapsedTime(float*, cudaEvent_t, cudaEvent_t) {
  return cudaErrorInvalidResourceHandle;
}

}  // extern "C"
