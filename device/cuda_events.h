// CUDA's events behind device::Event, created once and reused.
//
// Threads: any; events live as long as they are referenced, their pool as long as an event.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "device/device.h"

namespace penstock::device {

class CudaEventPool : public std::enable_shared_from_this<CudaEventPool> {
 public:
  /// Creates events of the device with this number.
  explicit CudaEventPool(int ordinal) : ordinal_(ordinal) {}
  ~CudaEventPool();
  CudaEventPool(const CudaEventPool&) = delete;
  CudaEventPool& operator=(const CudaEventPool&) = delete;

  /// Makes the device the calling thread's current one: a thread that has used none yet would
  /// otherwise begin to use the first.
  void UseDevice() const;
  /// Returns an event of all work given to `stream` so far. Errors: of the device.
  Result<Event> Record(cudaStream_t stream) EXCLUDES(mutex_);

 private:
  friend class CudaEvent;
  Result<cudaEvent_t> Take() EXCLUDES(mutex_);
  void Give(cudaEvent_t event) EXCLUDES(mutex_);

  const int ordinal_;
  Mutex mutex_;
  std::vector<cudaEvent_t> free_ GUARDED_BY(mutex_);
};

class CudaEvent final : public Event::State {
 public:
  CudaEvent(std::shared_ptr<CudaEventPool> pool, cudaEvent_t event)
      : pool_(std::move(pool)), event_(event) {}
  ~CudaEvent() override { pool_->Give(event_); }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  cudaEvent_t handle() const { return event_; }
  /// On a failed device nothing is outstanding: every event is reached. The stream has the failure.
  bool Reached() const override { return cudaEventQuery(event_) != cudaErrorNotReady; }
  void Wait() const override {
    pool_->UseDevice();
    static_cast<void>(cudaEventSynchronize(event_));
  }

 private:
  const std::shared_ptr<CudaEventPool> pool_;
  cudaEvent_t event_;
};

}  // namespace penstock::device
