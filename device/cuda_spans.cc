#include "device/cuda_spans.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace penstock::device {
namespace {

TraceGroup GroupOf(const std::string& name) {
  return name == "compute" ? TraceGroup::kCompute : TraceGroup::kCopies;
}

}  // namespace

CudaSpans::CudaSpans(cudaStream_t stream, const std::string& name, ActivityMeter& meter)
    : stream_(stream),
      meter_(meter),
      trace_(meter.trace()),
      row_(trace_ == nullptr ? Trace::Row() : trace_->AddRow(GroupOf(name), name)),
      label_(name) {
  Synchronized();
}

CudaSpans::~CudaSpans() {
  EndSpan();
  for (const Span& span : ended_) free_.insert(free_.end(), {span.begin, span.end});
  free_.push_back(origin_);
  for (cudaEvent_t event : free_) {
    if (event != nullptr) static_cast<void>(cudaEventDestroy(event));
  }
}

void CudaSpans::Extend(bool kernel) {
  if (!open_) Open(Kind::kCopies);
  if (kernel) open_->kind = Kind::kKernels;
}

void CudaSpans::BeginWait() {
  EndSpan();
  Open(Kind::kWait);
}

void CudaSpans::Open(Kind kind) {
  // The order matters: members are initialised as they are declared.
  open_ = Span{.kind = kind, .name = label_, .earliest = Trace::Clock::now(), .begin = Mark()};
}

void CudaSpans::EndSpan() {
  if (!open_) return;
  open_->end = Mark();
  ended_.push_back(*std::exchange(open_, std::nullopt));
}

void CudaSpans::Name(const std::string& what) {
  EndSpan();
  label_ = what;
}

cudaEvent_t CudaSpans::Mark() {
  cudaEvent_t event = nullptr;
  if (!free_.empty()) {
    event = free_.back();
    free_.pop_back();
  } else if (cudaEventCreateWithFlags(&event, cudaEventBlockingSync) != cudaSuccess) {
    return nullptr;
  }
  if (cudaEventRecord(event, stream_) != cudaSuccess) {
    static_cast<void>(cudaEventDestroy(event));
    return nullptr;
  }
  return event;
}

void CudaSpans::HandOver() {
  while (!ended_.empty()) {
    const Span& span = ended_.front();
    const bool marked = origin_ != nullptr && span.begin != nullptr && span.end != nullptr;
    if (marked && cudaEventQuery(span.end) != cudaSuccess) return;
    if (marked) Report(span);
    for (cudaEvent_t event : {span.begin, span.end}) {
      if (event != nullptr) free_.push_back(event);
    }
    ended_.pop_front();
  }
}

void CudaSpans::Report(const Span& span) {
  const auto now = Trace::Clock::now();
  const auto begin = std::clamp(TimeOf(span.begin), span.earliest, now);
  const auto end = std::clamp(TimeOf(span.end), begin, now);
  if (span.kind == Kind::kKernels) meter_.Add(Lane::kCompute, begin, end);
  if (span.kind == Kind::kWait) meter_.Add(Lane::kDataWait, begin, end);
  if (trace_ == nullptr) return;
  trace_->Add(row_, span.kind == Kind::kWait ? "wait for " + span.name : span.name, begin, end);
}

Trace::Clock::time_point CudaSpans::TimeOf(cudaEvent_t event) const {
  float milliseconds = 0;
  static_cast<void>(cudaEventElapsedTime(&milliseconds, origin_, event));
  return origin_time_ + std::chrono::duration_cast<Trace::Clock::duration>(
                            std::chrono::duration<double, std::milli>(milliseconds));
}

void CudaSpans::Synchronized() {
  EndSpan();
  cudaEvent_t now = Mark();
  if (now == nullptr || cudaEventSynchronize(now) != cudaSuccess) return;
  const auto time = Trace::Clock::now();
  HandOver();
  if (origin_ != nullptr) free_.push_back(origin_);
  origin_ = now;
  origin_time_ = time;
}

}  // namespace penstock::device
