// The one engine behind every CreateEngine: an I/O thread that runs an IoLoop over a drive.
//
// Callers queue requests under a lock; the I/O thread takes them over, and nothing but that thread
// touches the loop and the drive: Cancel and the registrations are commands to it. It also runs
// the completion callbacks. Any thread may call Engine's functions; from a callback only Submit and
// stats.
#pragma once

#include <cstdint>
#include <future>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "aio/aio.h"
#include "aio/drive.h"
#include "aio/io_loop.h"
#include "aio/request_queue.h"
#include "base/mutex.h"

namespace penstock::aio {

class RequestEngine final : public Engine {
 public:
  /// Starts the I/O thread, which makes its drive with `factory`. Errors: those of the factory, and
  /// kUnavailable where no thread is to be had. Of `options` it uses what IoLoop uses,
  /// registered_buffers and cpus; threads that the drive starts inherit the latter.
  static Result<std::unique_ptr<Engine>> Create(const EngineOptions& options,
                                                const DriveFactory& factory);
  ~RequestEngine() override;

  Ticket Submit(Request request) override EXCLUDES(mutex_);
  void Drain() override EXCLUDES(mutex_);
  void Cancel() override EXCLUDES(mutex_);
  Result<std::string> RegisterBuffers(std::span<const std::span<std::byte>> memory) override
      EXCLUDES(mutex_);
  void RegisterFile(const File& file) override EXCLUDES(mutex_);
  void UnregisterFile(const File& file) override EXCLUDES(mutex_);
  EngineStats stats() const override EXCLUDES(mutex_);
  const std::string& name() const override { return name_; }

 private:
  using Command = std::packaged_task<void(IoLoop&)>;

  explicit RequestEngine(Registration registered_buffers)
      : registered_buffers_(registered_buffers) {}
  /// The I/O thread; `started` receives how making the drive went.
  void Run(const EngineOptions& options, const DriveFactory& factory, std::promise<Status> started);
  void Serve(IoLoop& loop);
  /// Has the I/O thread run `command`, and waits until it did.
  void RunOnIoThread(Command command) EXCLUDES(mutex_);
  /// Moves what was submitted into the loop, then runs commands. False when the engine is to end
  /// and nothing is left.
  bool TakeSubmitted(IoLoop& loop) EXCLUDES(mutex_);
  /// False when there is something to do first; else a Submit will wake the drive from now on.
  bool MayWait(const IoLoop& loop) EXCLUDES(mutex_);
  void Finish(PendingRequest& request, const EngineStats& stats) EXCLUDES(mutex_);

  const Registration registered_buffers_;
  std::string name_;
  Drive* drive_ = nullptr;  ///< lives on the I/O thread, from before Create returns until the join
  std::vector<std::shared_ptr<PendingRequest>> taken_;  ///< used by the I/O thread only
  std::vector<Command> taken_commands_;                 ///< the same

  mutable Mutex mutex_;
  CondVar request_finished_;
  std::vector<std::shared_ptr<PendingRequest>> submitted_ GUARDED_BY(mutex_);
  std::vector<Command> commands_ GUARDED_BY(mutex_);
  std::set<uint64_t> unfinished_ GUARDED_BY(mutex_);  ///< sequence numbers
  uint64_t next_sequence_ GUARDED_BY(mutex_) = 0;
  bool wake_on_submit_ GUARDED_BY(mutex_) = false;
  bool stopping_ GUARDED_BY(mutex_) = false;
  EngineStats stats_ GUARDED_BY(mutex_);
  std::thread io_thread_;
};

}  // namespace penstock::aio
