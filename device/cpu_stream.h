// A stream of the CPU device: one thread that executes a queue of commands in order.
//
// After a kernel has thrown or a transfer has failed, later copies, kernels and transfers are
// skipped. Waits, events and calls are still executed in order: no wait for this stream hangs, and
// nothing is released while another stream may use it.
//
// Threads: one thread at a time feeds the stream; kernels, transfers and calls may not feed any
// stream.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "base/activity.h"
#include "base/mutex.h"
#include "device/arena.h"
#include "device/device.h"

namespace penstock::device {

class ThreadStream final : public CpuStream {
 public:
  /// A feeder that is this many commands ahead is held back until the stream has caught up by one.
  static constexpr size_t kMaxQueued = size_t{1} << 16;

  /// `arena` is where device pointers must lie; `meter` may be null. Both outlive the stream.
  /// Errors: kUnavailable if there is no thread.
  static Result<std::unique_ptr<ThreadStream>> Create(const std::string& name, const Arena& arena,
                                                      ActivityMeter* meter);
  ~ThreadStream() override;
  ThreadStream(const ThreadStream&) = delete;
  ThreadStream& operator=(const ThreadStream&) = delete;

  void CopyToDevice(std::byte* device, const std::byte* host, Bytes size) override;
  void CopyToHost(std::byte* host, const std::byte* device, Bytes size) override;
  void Zero(std::byte* device, Bytes size) override;
  Event Record() override;
  using Stream::Wait;
  void Wait(const Event& event, WaitReason reason) override;
  void Call(std::function<void()> function) override;
  void Launch(std::function<void()> kernel) override;
  void Transfer(std::function<Status()> transfer) override EXCLUDES(mutex_);
  void Name(std::string what) override;
  Status Synchronize() override EXCLUDES(mutex_);

 private:
  ThreadStream(std::string name, const Arena& arena, ActivityMeter* meter);

  enum class CommandKind {
    kCopy,      ///< skipped after a failure
    kKernel,    ///< the same, may fail, and is counted as compute
    kTransfer,  ///< the same, may fail
    kAlways,    ///< carried out after a failure too, and may not fail
  };
  struct Command {
    CommandKind kind;
    std::function<void()> function;
  };

  void Push(CommandKind kind, std::function<void()> function) EXCLUDES(mutex_);
  /// Returns the next command; none when the stream ends.
  std::optional<Command> Pop() EXCLUDES(mutex_);
  void Run();
  void Execute(const Command& command);
  void Fail(const Command& command, ErrorCode code, const char* why) EXCLUDES(mutex_);
  /// Must be called only once: commands after a failure are skipped.
  void FailWith(Error error) EXCLUDES(mutex_);
  void WaitFor(const Event& event, WaitReason reason);
  /// Adds a command's time to the span that is open, if it has the same name and follows at once.
  void ExtendSpan(Trace::Clock::time_point begin, Trace::Clock::time_point end);
  void EndSpan();

  const std::string name_;
  const Arena& arena_;
  ActivityMeter* const meter_;
  Trace* const trace_;
  const Trace::Row row_;

  mutable Mutex mutex_;
  CondVar not_empty_;
  CondVar not_full_;
  std::deque<Command> queue_ GUARDED_BY(mutex_);
  bool ending_ GUARDED_BY(mutex_) = false;
  Status status_ GUARDED_BY(mutex_);

  /// Commands of one name, one after the other, that are not in the trace yet.
  struct Span {
    std::string name;
    Trace::Clock::time_point begin;
    Trace::Clock::time_point end;
  };

  // Only the stream's thread touches these.
  bool failed_ = false;
  std::string label_;
  std::optional<Span> span_;

  std::thread thread_;  ///< last: it uses all the others
};

}  // namespace penstock::device
