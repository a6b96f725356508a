#include "device/cuda_stream.h"

#include <nvtx3/nvToolsExtCudaRt.h>

#include <utility>

#include "base/check.h"
#include "device/cuda_status.h"

namespace penstock::device {
namespace {

/// Replaces an event that could not be recorded: nothing is outstanding, and work that depends on
/// it must not continue.
class FailedEvent final : public Event::State {
 public:
  explicit FailedEvent(Status failure) : failure_(std::move(failure)) {}
  const Status& failure() const { return failure_; }
  bool Reached() const override { return true; }
  void Wait() const override {}

 private:
  const Status failure_;
};

}  // namespace

Result<std::unique_ptr<CudaQueue>> CudaQueue::Create(const std::string& name, const Arena& arena,
                                                     std::shared_ptr<CudaEventPool> events,
                                                     ActivityMeter* meter) {
  cudaStream_t stream = nullptr;
  PENSTOCK_TRY(CudaStatus(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
                          "creating the stream {}", name));
  nvtxNameCudaStreamA(stream, name.c_str());
  return std::unique_ptr<CudaQueue>(new CudaQueue(name, stream, arena, std::move(events), meter));
}

CudaQueue::CudaQueue(std::string name, cudaStream_t stream, const Arena& arena,
                     std::shared_ptr<CudaEventPool> events, ActivityMeter* meter)
    : name_(std::move(name)),
      stream_(stream),
      arena_(arena),
      events_(std::move(events)),
      calls_(name_) {
  if (meter != nullptr) spans_.emplace(stream_, name_, *meter);
}

CudaQueue::~CudaQueue() {
  static_cast<void>(Synchronize());
  if (range_) nvtxRangeEnd(*range_);
  spans_.reset();
  static_cast<void>(cudaStreamDestroy(stream_));
}

bool CudaQueue::BeginCopy(const std::byte* device, Bytes size) {
  if (size == 0_B) return false;
  PENSTOCK_CHECK(arena_.Contains(device, size), "stream {}: not device memory", name_);
  if (!status_.ok()) return false;
  events_->UseDevice();
  if (spans_) spans_->BeforeCopy();
  return true;
}

void CudaQueue::Take(const Status& status) {
  if (status.ok() || !status_.ok()) return;
  status_ = Error{status.error().code, fmt::format("stream {}: {}; the work behind it was skipped",
                                                   name_, status.error().message)};
}

void CudaQueue::EndSpan() {
  if (!spans_) return;
  spans_->EndSpan();
  spans_->HandOver();
}

void CudaQueue::CopyToDevice(std::byte* device, const std::byte* host, Bytes size) {
  if (!BeginCopy(device, size)) return;
  Take(CudaStatus(cudaMemcpyAsync(device, host, size.value, cudaMemcpyHostToDevice, stream_),
                  "copying {} bytes to the device", size.value));
}

void CudaQueue::CopyToHost(std::byte* host, const std::byte* device, Bytes size) {
  if (!BeginCopy(device, size)) return;
  Take(CudaStatus(cudaMemcpyAsync(host, device, size.value, cudaMemcpyDeviceToHost, stream_),
                  "copying {} bytes to the host", size.value));
}

void CudaQueue::Zero(std::byte* device, Bytes size) {
  if (!BeginCopy(device, size)) return;
  Take(CudaStatus(cudaMemsetAsync(device, 0, size.value, stream_), "zeroing {} bytes", size.value));
}

Event CudaQueue::Record() {
  EndSpan();
  Result<Event> event = events_->Record(stream_);
  if (event.ok()) return *event;
  Take(event.status());
  static_cast<void>(cudaStreamSynchronize(stream_));
  return Event(std::make_shared<FailedEvent>(status_));
}

void CudaQueue::Wait(const Event& event, WaitReason reason) {
  if (const auto* const failed = dynamic_cast<const FailedEvent*>(event.state().get())) {
    Take(failed->failure());
    return;
  }
  if (event.reached()) return;
  const auto* const state = dynamic_cast<const CudaEvent*>(event.state().get());
  PENSTOCK_CHECK(state != nullptr, "stream {} waits for an event of another device", name_);
  EndSpan();
  if (spans_ && reason == WaitReason::kData) spans_->BeginWait();
  const Status enqueued =
      CudaStatus(cudaStreamWaitEvent(stream_, state->handle(), 0), "waiting for an event");
  // The events and calls after a wait must come after it in any case.
  if (!enqueued.ok()) event.Wait();
  Take(enqueued);
  EndSpan();
}

void CudaQueue::Call(std::function<void()> function) { calls_.Add(Record(), std::move(function)); }

void CudaQueue::Launch(const std::function<Status(CUstream_st*)>& enqueue) {
  if (!status_.ok()) return;
  if (spans_) spans_->BeforeKernel();
  Take(enqueue(stream_));
}

void CudaQueue::Transfer(const std::function<Status(CUstream_st*)>& enqueue) {
  if (!status_.ok()) return;
  if (spans_) spans_->BeforeCopy();
  status_ = enqueue(stream_);
}

void CudaQueue::CopyOnDevice(std::byte* to, const std::byte* from, Bytes size) {
  if (!BeginCopy(arena_.Contains(to, size) ? to : from, size)) return;
  Take(CudaStatus(cudaMemcpyAsync(to, from, size.value, cudaMemcpyDeviceToDevice, stream_),
                  "copying {} bytes on the device", size.value));
}

void CudaQueue::Follow(CUstream_st* other) {
  const Result<Event> event = events_->Record(other);
  if (event.ok()) return Wait(*event, WaitReason::kOrder);
  Take(event.status());  // after which no work is enqueued that would have to wait
}

void CudaQueue::Precede(CUstream_st* other) {
  const Event event = Record();
  const auto* const state = dynamic_cast<const CudaEvent*>(event.state().get());
  if (state == nullptr) return;  // the work is over
  const Status enqueued =
      CudaStatus(cudaStreamWaitEvent(other, state->handle(), 0), "having another stream wait");
  if (!enqueued.ok()) event.Wait();
  Take(enqueued);
}

void CudaQueue::Name(std::string what) {
  if (spans_) spans_->Name(what);
  if (range_) nvtxRangeEnd(*range_);
  range_ = nvtxRangeStartA((name_ + ": " + what).c_str());
}

Status CudaQueue::Synchronize() {
  const Event event = Record();
  if (const auto* const state = dynamic_cast<const CudaEvent*>(event.state().get())) {
    Take(CudaStatus(cudaEventSynchronize(state->handle()), "waiting for the stream's work"));
  }
  calls_.Drain();
  if (spans_) spans_->Synchronized();
  return status_;
}

}  // namespace penstock::device
