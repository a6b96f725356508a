#include "device/cuda_device.h"

#include <cuda_runtime_api.h>

#include <utility>

#include "device/cuda_status.h"
#include "device/cuda_stream.h"

namespace penstock::device {
namespace {

/// Returns the number of the calling thread's current device.
Result<int> FindDevice() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) {
    return MakeError(ErrorCode::kUnavailable,
                     "there is no GPU that CUDA can use: {}; use --device cpu",
                     cudaGetErrorString(error));
  }
  if (count == 0) {
    return MakeError(ErrorCode::kUnavailable,
                     "there is no GPU that CUDA can use: the driver lists none; use --device cpu");
  }
  int ordinal = 0;
  PENSTOCK_TRY(CudaStatus(cudaGetDevice(&ordinal), "asking for the current device"));
  PENSTOCK_TRY(CudaStatus(cudaSetDevice(ordinal), "choosing device {}", ordinal));
  return ordinal;
}

Result<std::string> PciBusId(int ordinal) {
  char text[32] = {};
  PENSTOCK_TRY(CudaStatus(cudaDeviceGetPCIBusId(text, sizeof(text), ordinal),
                          "asking for the bus id of device {}", ordinal));
  return std::string(text);
}

}  // namespace

Result<CudaMemory> CudaMemory::Allocate(Bytes size) {
  if (size == 0_B) return CudaMemory(nullptr);
  void* data = nullptr;
  const cudaError_t error = cudaMalloc(&data, size.value);
  if (error == cudaSuccess) return CudaMemory(static_cast<std::byte*>(data));
  PENSTOCK_ASSIGN(const Bytes free, FreeCudaMemory());
  Error failure =
      CudaError(error, fmt::format("allocating {} of device memory, of which {} are free",
                                   ToString(size), ToString(free)));
  failure.message += "; lower --device-memory";
  return failure;
}

CudaMemory::~CudaMemory() {
  if (data_ != nullptr) static_cast<void>(cudaFree(data_));
}

CudaDevice::CudaDevice(int ordinal, std::string name, std::string pci_bus_id, CudaMemory memory,
                       const DeviceOptions& options)
    : name_(std::move(name)),
      pci_bus_id_(std::move(pci_bus_id)),
      meter_(options.meter),
      memory_(std::move(memory)),
      arena_(memory_.data(), options.memory),
      events_(std::make_shared<CudaEventPool>(ordinal)) {}

Result<std::unique_ptr<Stream>> CudaDevice::CreateStream(const std::string& name) {
  PENSTOCK_ASSIGN(std::unique_ptr<CudaQueue> stream,
                  CudaQueue::Create(name, arena_, events_, meter_));
  return std::unique_ptr<Stream>(std::move(stream));
}

Status CudaDevice::Pin(std::span<std::byte> memory) {
  const cudaError_t error =
      cudaHostRegister(memory.data(), memory.size(), cudaHostRegisterPortable);
  if (error == cudaSuccess) return {};
  return MakeError(
      ErrorCode::kOutOfMemory, "cuda: pinning {} of host memory: {} ({}); lower --host-memory",
      ToString(Bytes{memory.size()}), cudaGetErrorString(error), cudaGetErrorName(error));
}

void CudaDevice::Unpin(std::byte* data) { static_cast<void>(cudaHostUnregister(data)); }

Result<std::unique_ptr<Device>> CreateCudaDevice(const DeviceOptions& options) {
  PENSTOCK_ASSIGN(const int ordinal, FindDevice());
  cudaDeviceProp properties{};
  PENSTOCK_TRY(CudaStatus(cudaGetDeviceProperties(&properties, ordinal),
                          "asking for the properties of device {}", ordinal));
  PENSTOCK_ASSIGN(std::string bus, PciBusId(ordinal));
  PENSTOCK_ASSIGN(CudaMemory memory, CudaMemory::Allocate(options.memory));
  std::string name =
      fmt::format("cuda ({}, compute capability {}.{}, {} multiprocessors)", properties.name,
                  properties.major, properties.minor, properties.multiProcessorCount);
  return std::unique_ptr<Device>(std::make_unique<CudaDevice>(
      ordinal, std::move(name), std::move(bus), std::move(memory), options));
}

Result<Bytes> FreeCudaMemory() {
  PENSTOCK_TRY(FindDevice().status());
  size_t free = 0;
  size_t total = 0;
  PENSTOCK_TRY(CudaStatus(cudaMemGetInfo(&free, &total), "asking for the free device memory"));
  return Bytes{free};
}

int BuiltCudaVersion() { return CUDART_VERSION; }

}  // namespace penstock::device
