#include "device/cuda_events.h"

#include "device/cuda_status.h"

namespace penstock::device {

CudaEventPool::~CudaEventPool() {
  MutexLock lock(mutex_);
  for (cudaEvent_t event : free_) static_cast<void>(cudaEventDestroy(event));
}

void CudaEventPool::UseDevice() const { static_cast<void>(cudaSetDevice(ordinal_)); }

Result<Event> CudaEventPool::Record(cudaStream_t stream) {
  UseDevice();
  PENSTOCK_ASSIGN(cudaEvent_t handle, Take());
  auto event = std::make_shared<CudaEvent>(shared_from_this(), handle);
  PENSTOCK_TRY(CudaStatus(cudaEventRecord(handle, stream), "recording an event"));
  return Event(std::move(event));
}

Result<cudaEvent_t> CudaEventPool::Take() {
  {
    MutexLock lock(mutex_);
    if (!free_.empty()) {
      cudaEvent_t event = free_.back();
      free_.pop_back();
      return event;
    }
  }
  cudaEvent_t event = nullptr;
  // Who waits sleeps: optimizer and I/O threads need the cores.
  PENSTOCK_TRY(
      CudaStatus(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventBlockingSync),
                 "creating an event"));
  return event;
}

void CudaEventPool::Give(cudaEvent_t event) {
  MutexLock lock(mutex_);
  free_.push_back(event);
}

}  // namespace penstock::device
