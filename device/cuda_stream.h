// A stream of the CUDA device.
//
// After a failure, copies, kernels and transfers are not enqueued any more. Waits, events and calls
// are still executed when earlier work has ended: no wait hangs, and nothing is released while
// another stream may use it.
//
// Calls run on a thread of this process: CUDA's callbacks block the stream's later work until they
// have returned, and objects could be destroyed before a callback that a failed device delivers
// late.
//
// Threads: one thread at a time feeds the stream.
#pragma once

#include <cuda_runtime_api.h>
#include <nvtx3/nvToolsExt.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "device/arena.h"
#include "device/call_thread.h"
#include "device/cuda_events.h"
#include "device/cuda_spans.h"
#include "device/device.h"

namespace penstock::device {

class CudaQueue final : public CudaStream {
 public:
  /// `arena` is where device pointers must lie; `meter` may be null. Both outlive the stream.
  static Result<std::unique_ptr<CudaQueue>> Create(const std::string& name, const Arena& arena,
                                                   std::shared_ptr<CudaEventPool> events,
                                                   ActivityMeter* meter);
  ~CudaQueue() override;
  CudaQueue(const CudaQueue&) = delete;
  CudaQueue& operator=(const CudaQueue&) = delete;

  void CopyToDevice(std::byte* device, const std::byte* host, Bytes size) override;
  void CopyToHost(std::byte* host, const std::byte* device, Bytes size) override;
  void Zero(std::byte* device, Bytes size) override;
  Event Record() override;
  using Stream::Wait;
  void Wait(const Event& event, WaitReason reason) override;
  void Call(std::function<void()> function) override;
  void Launch(const std::function<Status(CUstream_st*)>& enqueue) override;
  void Transfer(const std::function<Status(CUstream_st*)>& enqueue) override;
  void CopyOnDevice(std::byte* to, const std::byte* from, Bytes size) override;
  void Follow(CUstream_st* other) override;
  void Precede(CUstream_st* other) override;
  const Status& status() const override { return status_; }
  void Name(std::string what) override;
  Status Synchronize() override;

 private:
  CudaQueue(std::string name, cudaStream_t stream, const Arena& arena,
            std::shared_ptr<CudaEventPool> events, ActivityMeter* meter);
  /// Whether a copy on device memory may be enqueued.
  bool BeginCopy(const std::byte* device, Bytes size);
  /// Keeps the first failure.
  void Take(const Status& status);
  void EndSpan();

  const std::string name_;
  cudaStream_t stream_;
  const Arena& arena_;
  const std::shared_ptr<CudaEventPool> events_;
  std::optional<CudaSpans> spans_;  ///< set if there is a meter
  std::optional<nvtxRangeId_t> range_;
  Status status_;
  CallThread calls_;
};

}  // namespace penstock::device
