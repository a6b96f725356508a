#include "device/cpu_stream.h"

#include <pthread.h>

#include <cstring>
#include <exception>
#include <new>
#include <utility>

#include "base/check.h"
#include "base/denormals.h"
#include "base/exception_name.h"
#include "base/thread.h"

namespace penstock::device {
namespace {

/// Whether this thread carries out a stream's commands, and so may not feed or await one.
thread_local bool on_stream_thread = false;

class ThreadEvent final : public Event::State {
 public:
  void Fire() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    reached_ = true;
    condition_.NotifyAll();
  }
  bool Reached() const override EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return reached_;
  }
  void Wait() const override EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (!reached_) condition_.Wait(mutex_);
  }

 private:
  mutable Mutex mutex_;
  mutable CondVar condition_;
  bool reached_ GUARDED_BY(mutex_) = false;
};

TraceGroup GroupOf(const std::string& name) {
  return name == "compute" ? TraceGroup::kCompute : TraceGroup::kCopies;
}

/// A pause that a viewer need not see.
constexpr auto kSameSpan = std::chrono::microseconds(20);

}  // namespace

ThreadStream::ThreadStream(std::string name, const Arena& arena, ActivityMeter* meter)
    : name_(std::move(name)),
      arena_(arena),
      meter_(meter),
      trace_(TraceOf(meter)),
      row_(trace_ == nullptr ? Trace::Row() : trace_->AddRow(GroupOf(name_), name_)),
      label_(name_) {}

Result<std::unique_ptr<ThreadStream>> ThreadStream::Create(const std::string& name,
                                                           const Arena& arena,
                                                           ActivityMeter* meter) {
  std::unique_ptr<ThreadStream> stream(new ThreadStream(name, arena, meter));
  PENSTOCK_ASSIGN(stream->thread_,
                  StartThread("stream " + name, [raw = stream.get()] { raw->Run(); }));
  return stream;
}

ThreadStream::~ThreadStream() {
  if (!thread_.joinable()) return;
  {
    MutexLock lock(mutex_);
    ending_ = true;
    not_empty_.NotifyOne();
  }
  thread_.join();
}

void ThreadStream::CopyToDevice(std::byte* device, const std::byte* host, Bytes size) {
  if (size == 0_B) return;
  PENSTOCK_CHECK(arena_.Contains(device, size), "stream {}: not device memory", name_);
  Push(CommandKind::kCopy, [=] { std::memcpy(device, host, size.value); });
}

void ThreadStream::CopyToHost(std::byte* host, const std::byte* device, Bytes size) {
  if (size == 0_B) return;
  PENSTOCK_CHECK(arena_.Contains(device, size), "stream {}: not device memory", name_);
  Push(CommandKind::kCopy, [=] { std::memcpy(host, device, size.value); });
}

void ThreadStream::Zero(std::byte* device, Bytes size) {
  if (size == 0_B) return;
  PENSTOCK_CHECK(arena_.Contains(device, size), "stream {}: not device memory", name_);
  Push(CommandKind::kCopy, [=] { std::memset(device, 0, size.value); });
}

Event ThreadStream::Record() {
  auto state = std::make_shared<ThreadEvent>();
  Push(CommandKind::kAlways, [state] { state->Fire(); });
  return Event(std::move(state));
}

void ThreadStream::Wait(const Event& event, WaitReason reason) {
  if (event.reached()) return;
  Push(CommandKind::kAlways, [this, event, reason] { WaitFor(event, reason); });
}

void ThreadStream::Call(std::function<void()> function) {
  Push(CommandKind::kAlways, std::move(function));
}

void ThreadStream::Launch(std::function<void()> kernel) {
  Push(CommandKind::kKernel, std::move(kernel));
}

void ThreadStream::Transfer(std::function<Status()> transfer) {
  Push(CommandKind::kTransfer, [this, transfer = std::move(transfer)] {
    if (const Status status = transfer(); !status.ok()) FailWith(status.error());
  });
}

void ThreadStream::Name(std::string what) {
  if (trace_ == nullptr) return;
  Push(CommandKind::kAlways, [this, what = std::move(what)] { label_ = what; });
}

Status ThreadStream::Synchronize() {
  Record().Wait();
  MutexLock lock(mutex_);
  return status_;
}

void ThreadStream::Push(CommandKind kind, std::function<void()> function) {
  PENSTOCK_CHECK(!on_stream_thread, "stream {} is fed by a kernel or a call of a stream", name_);
  MutexLock lock(mutex_);
  while (queue_.size() >= kMaxQueued) not_full_.Wait(mutex_);
  queue_.push_back(Command{kind, std::move(function)});
  if (queue_.size() == 1) not_empty_.NotifyOne();
}

std::optional<ThreadStream::Command> ThreadStream::Pop() {
  MutexLock lock(mutex_);
  if (queue_.empty()) EndSpan();
  while (queue_.empty() && !ending_) not_empty_.Wait(mutex_);
  if (queue_.empty()) return std::nullopt;
  Command command = std::move(queue_.front());
  queue_.pop_front();
  if (queue_.size() == kMaxQueued - 1) not_full_.NotifyOne();
  return command;
}

void ThreadStream::Run() {
  on_stream_thread = true;
  PENSTOCK_CHECK(KeepsDenormals(), "stream {}: a library has denormals flushed to zero", name_);
  ::pthread_setname_np(::pthread_self(), name_.substr(0, kMaxThreadName).c_str());
  // Each command and what its function holds is gone before the next one, an event say, is begun.
  while (const std::optional<Command> command = Pop()) Execute(*command);
}

void ThreadStream::Execute(const Command& command) {
  if (failed_ && command.kind != CommandKind::kAlways) return;
  try {
    ActivityScope scope(command.kind == CommandKind::kKernel ? meter_ : nullptr, Lane::kCompute);
    const bool traced = trace_ != nullptr && command.kind != CommandKind::kAlways;
    const auto begin = traced ? Trace::Clock::now() : Trace::Clock::time_point();
    command.function();
    if (traced) ExtendSpan(begin, Trace::Clock::now());
  } catch (const std::bad_alloc&) {
    Fail(command, ErrorCode::kOutOfMemory, "the host has no memory left");
  } catch (const std::exception& exception) {
    Fail(command, ErrorCode::kUnavailable, ExceptionName(exception).c_str());
  } catch (...) {
    Fail(command, ErrorCode::kUnavailable, "an exception of an unknown type");
  }
}

void ThreadStream::Fail(const Command& command, ErrorCode code, const char* why) {
  const bool kernel = command.kind == CommandKind::kKernel;
  PENSTOCK_CHECK(kernel || command.kind == CommandKind::kTransfer,
                 "stream {}: a call has thrown: {}", name_, why);
  FailWith(MakeError(code, "stream {}: a {} failed: {}; the work behind it was skipped", name_,
                     kernel ? "kernel" : "transfer", why));
}

void ThreadStream::FailWith(Error error) {
  failed_ = true;
  MutexLock lock(mutex_);
  status_ = std::move(error);
}

void ThreadStream::WaitFor(const Event& event, WaitReason reason) {
  if (event.reached()) return;
  EndSpan();
  const TraceSpan span(reason == WaitReason::kData ? trace_ : nullptr, row_, "wait for " + label_,
                       kSameSpan);
  ActivityScope scope(reason == WaitReason::kData ? meter_ : nullptr, Lane::kDataWait);
  event.Wait();
}

void ThreadStream::ExtendSpan(Trace::Clock::time_point begin, Trace::Clock::time_point end) {
  if (!span_ || span_->name != label_ || begin - span_->end >= kSameSpan) {
    EndSpan();
    span_ = Span{.name = label_, .begin = begin};
  }
  span_->end = end;
}

void ThreadStream::EndSpan() {
  if (span_) trace_->Add(row_, span_->name, span_->begin, span_->end);
  span_.reset();
}

}  // namespace penstock::device
