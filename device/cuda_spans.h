// Measures when a CUDA stream was busy and when it waited for data, by the GPU's clock.
//
// Spans are bounded by events on the stream, without waiting for them: completed ones are read
// whenever the stream's feeder asks, and go to the meter and the trace with the host's time. The
// two clocks are compared whenever the stream is idle; their difference never moves a span before
// the time at which the host enqueued its begin, or after the time at which its end was found.
// Spans that cannot be measured are left out; a device that fails reports that elsewhere.
//
// Threads: the one that feeds the stream.
#pragma once

#include <cuda_runtime_api.h>

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "base/activity.h"
#include "base/trace.h"

namespace penstock::device {

class CudaSpans {
 public:
  /// `name` and `stream` are the stream's; `meter` outlives this.
  CudaSpans(cudaStream_t stream, const std::string& name, ActivityMeter& meter);
  ~CudaSpans();
  CudaSpans(const CudaSpans&) = delete;
  CudaSpans& operator=(const CudaSpans&) = delete;

  /// Call these before a copy or a kernel is enqueued: it belongs to the open span, or opens one.
  void BeforeCopy() { Extend(false); }
  void BeforeKernel() { Extend(true); }
  /// Call this before the stream waits for data; the wait ends with EndSpan.
  void BeginWait();
  /// Ends the open span, if any: work enqueued so far is its last.
  void EndSpan();
  /// Sets the name of spans from now on.
  void Name(const std::string& what);

  /// Hands over the spans that are over.
  void HandOver();
  /// Hands over all spans and compares the clocks. The stream must be idle.
  void Synchronized();

 private:
  enum class Kind { kCopies, kKernels, kWait };
  struct Span {
    Kind kind;
    std::string name;
    Trace::Clock::time_point earliest;  ///< host time before `begin` was recorded
    cudaEvent_t begin = nullptr;
    cudaEvent_t end = nullptr;
  };

  void Extend(bool kernel);
  void Open(Kind kind);
  /// Records an event; null where that fails.
  cudaEvent_t Mark();
  Trace::Clock::time_point TimeOf(cudaEvent_t event) const;
  void Report(const Span& span);

  cudaStream_t stream_;
  ActivityMeter& meter_;
  Trace* const trace_;
  const Trace::Row row_;
  std::string label_;
  std::optional<Span> open_;
  std::deque<Span> ended_;
  std::vector<cudaEvent_t> free_;
  cudaEvent_t origin_ = nullptr;  ///< the moment on the GPU that is origin_time_ on the host
  Trace::Clock::time_point origin_time_;
};

}  // namespace penstock::device
