#include "aio/request_engine.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "aio/completion.h"
#include "aio/thread_setup.h"
#include "base/check.h"
#include "base/thread.h"

namespace penstock::aio {
namespace {

/// Why a request cannot be carried out at all, or success.
Status Validate(const Request& request) {
  if (request.file == nullptr) {
    return MakeError(ErrorCode::kInvalidArgument, "{} request without a file",
                     ToString(request.operation));
  }
  if (request.operation == Operation::kSync) {
    if (request.buffer.empty()) return {};
    return MakeError(ErrorCode::kInvalidArgument, "{}: it has a buffer", Describe(request));
  }
  if (request.buffer.empty()) {
    return MakeError(ErrorCode::kInvalidArgument, "{}: the buffer is empty", Describe(request));
  }
  constexpr auto kLastOffset = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  if (request.offset.value > kLastOffset ||
      request.buffer.size() > kLastOffset - request.offset.value) {
    return MakeError(ErrorCode::kInvalidArgument, "{}: it ends beyond the largest file offset",
                     Describe(request));
  }
  return {};
}

/// The engine that the calling thread serves.
thread_local const RequestEngine* own_engine = nullptr;

}  // namespace

Result<std::unique_ptr<Engine>> RequestEngine::Create(const EngineOptions& options,
                                                      const DriveFactory& factory) {
  std::unique_ptr<RequestEngine> engine(new RequestEngine(options.registered_buffers));
  std::promise<Status> started;
  std::future<Status> outcome = started.get_future();
  PENSTOCK_ASSIGN(engine->first_thread_,
                  StartThread("I/O", [&options, &factory, raw = engine.get(),
                                      promise = std::move(started)]() mutable {
                    raw->Run(options, factory, std::move(promise));
                  }));
  PENSTOCK_TRY(outcome.get());
  return std::unique_ptr<Engine>(std::move(engine));
}

RequestEngine::~RequestEngine() {
  if (!first_thread_.joinable()) return;
  Stop();
  first_thread_.join();
}

void RequestEngine::Stop() {
  MutexLock lock(mutex_);
  stopping_ = true;
  // Under the lock, as in Submit: without it the I/O threads could end, and the drive with them,
  // before the call. A null drive was never made.
  if (drive_ != nullptr) drive_->Wake();
}

void RequestEngine::Run(const EngineOptions& options, const DriveFactory& factory,
                        std::promise<Status> started) {
  EnterIoThread("penstock-io");
  if (Status bound = BindToCpus(options.cpus); !bound.ok()) return started.set_value(bound);
  Result<std::unique_ptr<Drive>> made = factory(serving_);
  if (!made.ok()) return started.set_value(made.error());
  const std::unique_ptr<Drive> drive = std::move(made).value();
  IoLoop loop(*drive, options, [this](Pending request) {
    serving_.AssertHeld();
    finished_.push_back(std::move(request));
  });
  name_ = drive->name();
  drive_ = drive.get();
  std::vector<std::thread> others;
  const Status complete = StartOthers(drive->thread_count() - 1, loop, others);
  if (complete.ok()) {
    // From here on options and factory may be gone: Create returns.
    started.set_value(Status());
  } else {
    Stop();
  }
  Serve(loop);
  for (std::thread& other : others) other.join();
  if (complete.ok()) return;
  drive_ = nullptr;
  started.set_value(complete);
}

Status RequestEngine::StartOthers(int count, IoLoop& loop, std::vector<std::thread>& others) {
  for (int i = 0; i < count; ++i) {
    // They inherit the CPUs of the first.
    PENSTOCK_ASSIGN(
        std::thread other,
        StartThread(fmt::format("I/O, number {} of {}", i + 2, count + 1), [this, &loop] {
          EnterIoThread("penstock-io");
          Serve(loop);
        }));
    others.push_back(std::move(other));
  }
  return {};
}

void RequestEngine::Serve(IoLoop& loop) {
  own_engine = this;
  std::vector<BlockResult> results;
  {
    MutexLock serving(serving_);
    while (TakeSubmitted(loop)) {
      loop.Fill();
      if (MayWait(loop)) loop.Reap(results);
      CompleteFinished(loop.stats());
    }
  }
  // The next thread that waits ends, too.
  drive_->Wake();
}

bool RequestEngine::TakeSubmitted(IoLoop& loop) {
  {
    MutexLock lock(mutex_);
    wake_on_submit_ = false;
    ForgetCompleted();
    if (stopping_ && submitted_.empty() && loop.idle()) return false;
    taken_.swap(submitted_);
    taken_commands_.swap(commands_);
  }
  for (Pending& request : taken_) loop.Add(std::move(request));
  taken_.clear();
  for (Command& command : taken_commands_) command(loop);
  taken_commands_.clear();
  return true;
}

bool RequestEngine::MayWait(const IoLoop& loop) {
  // What finished without the drive.
  if (!finished_.empty() || !completed_.empty()) return false;
  MutexLock lock(mutex_);
  if (!commands_.empty() || (!submitted_.empty() && loop.has_room())) return false;
  if (stopping_ && loop.idle()) return false;
  wake_on_submit_ = loop.has_room();
  return true;
}

void RequestEngine::CompleteFinished(const EngineStats& stats) {
  if (finished_.empty()) return;
  {
    MutexLock lock(mutex_);
    stats_ = stats;
    // This thread looks for what is submitted meanwhile before it waits again.
    wake_on_submit_ = false;
  }
  for (const Pending& request : finished_) {
    request->ticket.Complete(request->outcome);
    if (request->request.on_complete) {
      request->request.on_complete(request->outcome);
      // The callback's objects are released before Drain returns.
      request->request.on_complete = nullptr;
    }
    request->request.about = nullptr;
    completed_.push_back(request->sequence);
  }
  finished_.clear();
}

void RequestEngine::ForgetCompleted() {
  for (const uint64_t sequence : completed_) unfinished_.Finish(sequence);
  completed_.clear();
  if (unfinished_.oldest() < drain_end_) return;
  drain_end_ = UINT64_MAX;
  oldest_finished_.NotifyAll();
}

Ticket RequestEngine::Submit(Request request) {
  auto pending = std::make_shared<PendingRequest>();
  pending->outcome = Validate(request);
  pending->request = std::move(request);
  Ticket ticket(std::shared_ptr<Ticket::State>(pending, &pending->ticket));

  MutexLock lock(mutex_);
  pending->sequence = unfinished_.Add();
  submitted_.push_back(std::move(pending));
  // Under the lock: with it gone the request may be complete, and the engine with it.
  if (std::exchange(wake_on_submit_, false)) drive_->Wake();
  return ticket;
}

void RequestEngine::RunOnIoThread(Command command) {
  PENSTOCK_CHECK(own_engine != this, "a completion callback called what waits for its own thread");
  const std::future<void> done = command.get_future();
  {
    MutexLock lock(mutex_);
    commands_.push_back(std::move(command));
    drive_->Wake();
  }
  done.wait();
}

void RequestEngine::Cancel() {
  RunOnIoThread(Command([this](IoLoop& loop) {
    serving_.AssertHeld();
    loop.Cancel();
    CompleteFinished(loop.stats());
  }));
}

Result<std::string> RequestEngine::RegisterBuffers(std::span<const std::span<std::byte>> memory) {
  if (std::ranges::all_of(memory, [](const auto& part) { return part.empty(); })) {
    return MakeError(ErrorCode::kInvalidArgument, "no memory was given for aio to register");
  }
  {
    MutexLock lock(mutex_);
    if (std::exchange(memory_registered_, true)) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "memory was registered with this aio engine before; give it all at once");
    }
  }
  if (registered_buffers_ == Registration::kOff) return std::string();
  Result<std::string> line = std::string();
  RunOnIoThread(Command([&](IoLoop&) { line = drive_->RegisterBuffers(memory); }));
  if (line.ok() || registered_buffers_ == Registration::kOn) return line;
  return fmt::format("aio buffers are not registered: {}", line.error().message);
}

Result<FileRegistration> RequestEngine::RegisterFile(const File& file) {
  Status registered;
  RunOnIoThread(Command([&](IoLoop&) { registered = drive_->RegisterFile(file); }));
  if (!registered.ok()) return registered.error();
  return FileRegistration([this, fd = file.fd(), buffered_fd = file.buffered_fd()] {
    RunOnIoThread(Command([=, this](IoLoop&) {
      drive_->UnregisterFile(fd);
      drive_->UnregisterFile(buffered_fd);
    }));
  });
}

void RequestEngine::Drain() {
  PENSTOCK_CHECK(own_engine != this,
                 "Drain was called from a completion callback, which it would wait for");
  MutexLock lock(mutex_);
  const uint64_t end = unfinished_.end();
  while (unfinished_.oldest() < end) {
    drain_end_ = std::min(drain_end_, end);
    oldest_finished_.Wait(mutex_);
  }
}

EngineStats RequestEngine::stats() const {
  MutexLock lock(mutex_);
  return stats_;
}

}  // namespace penstock::aio
