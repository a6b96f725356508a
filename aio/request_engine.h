// The one engine behind every CreateEngine: I/O threads that serve an IoLoop over a drive.
//
// Callers queue requests under mutex_; an I/O thread takes them. Only I/O threads use the loop and
// the drive, one at a time, under serving_: Cancel and the registrations are commands to them, and
// so completion callbacks never run at the same time. Most drives want one thread; those of the
// thread engine each execute blocks, for which they release serving_ (aio/drive.h).
//
// Locks: serving_ before mutex_ before the drive's. Any thread may call Engine's functions; from a
// callback only Submit and stats.
#pragma once

#include <cstdint>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "aio/aio.h"
#include "aio/drive.h"
#include "aio/io_loop.h"
#include "aio/request_queue.h"
#include "aio/unfinished.h"
#include "base/mutex.h"

namespace penstock::aio {

class RequestEngine final : public Engine {
 public:
  /// Starts the first I/O thread, which makes its drive with `factory`, and as many more as that
  /// wants. Errors: those of the factory, and kUnavailable if no threads are available. Of
  /// `options` it uses what IoLoop uses, registered_buffers and cpus.
  static Result<std::unique_ptr<Engine>> Create(const EngineOptions& options,
                                                const DriveFactory& factory);
  ~RequestEngine() override;

  Ticket Submit(Request request) override EXCLUDES(mutex_);
  void Drain() override EXCLUDES(mutex_);
  void Cancel() override EXCLUDES(mutex_);
  Result<std::string> RegisterBuffers(std::span<const std::span<std::byte>> memory) override
      EXCLUDES(mutex_);
  Result<FileRegistration> RegisterFile(const File& file) override EXCLUDES(mutex_);
  EngineStats stats() const override EXCLUDES(mutex_);
  const std::string& name() const override { return name_; }

 private:
  using Command = std::packaged_task<void(IoLoop&)>;
  using Pending = std::shared_ptr<PendingRequest>;

  explicit RequestEngine(Registration registered_buffers)
      : registered_buffers_(registered_buffers) {}
  /// The first I/O thread; `started` receives how it went.
  void Run(const EngineOptions& options, const DriveFactory& factory, std::promise<Status> started);
  Status StartOthers(int count, IoLoop& loop, std::vector<std::thread>& others);
  /// What every I/O thread does until the engine ends.
  void Serve(IoLoop& loop) EXCLUDES(serving_, mutex_);
  /// Moves what was submitted into the loop, then runs commands. False when the engine is to end
  /// and nothing is left.
  bool TakeSubmitted(IoLoop& loop) REQUIRES(serving_) EXCLUDES(mutex_);
  /// Returns false if there is something to do first; else a Submit will wake the drive from now
  /// on.
  bool MayWait(const IoLoop& loop) REQUIRES(serving_) EXCLUDES(mutex_);
  /// Completes the tickets and runs the callbacks of what has finished.
  void CompleteFinished(const EngineStats& stats) REQUIRES(serving_) EXCLUDES(mutex_);
  void ForgetCompleted() REQUIRES(serving_, mutex_);
  void Stop() EXCLUDES(mutex_);
  /// Has an I/O thread run `command`, and waits until it did.
  void RunOnIoThread(Command command) EXCLUDES(mutex_);

  const Registration registered_buffers_;
  std::string name_;
  /// Lives on the first I/O thread, from before Create returns until the join.
  Drive* drive_ = nullptr;

  Mutex serving_;
  std::vector<Pending> taken_ GUARDED_BY(serving_);
  std::vector<Command> taken_commands_ GUARDED_BY(serving_);
  std::vector<Pending> finished_ GUARDED_BY(serving_);    ///< requests to be completed
  std::vector<uint64_t> completed_ GUARDED_BY(serving_);  ///< sequence numbers

  mutable Mutex mutex_;
  CondVar oldest_finished_;
  std::vector<Pending> submitted_ GUARDED_BY(mutex_);
  std::vector<Command> commands_ GUARDED_BY(mutex_);
  Unfinished unfinished_ GUARDED_BY(mutex_);
  uint64_t drain_end_ GUARDED_BY(mutex_) = UINT64_MAX;  ///< min that a Drain waits for
  bool memory_registered_ GUARDED_BY(mutex_) = false;
  bool wake_on_submit_ GUARDED_BY(mutex_) = false;
  bool stopping_ GUARDED_BY(mutex_) = false;
  EngineStats stats_ GUARDED_BY(mutex_);
  std::thread first_thread_;
};

}  // namespace penstock::aio
