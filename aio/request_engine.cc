#include "aio/request_engine.h"

#include <limits>
#include <system_error>
#include <utility>

#include "aio/completion.h"
#include "aio/thread_setup.h"
#include "base/check.h"

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

}  // namespace

Result<std::unique_ptr<Engine>> RequestEngine::Create(const EngineOptions& options,
                                                      const DriveFactory& factory) {
  std::unique_ptr<RequestEngine> engine(new RequestEngine(options.registered_buffers));
  std::promise<Status> started;
  std::future<Status> outcome = started.get_future();
  try {
    engine->io_thread_ = std::thread(
        [&options, &factory, raw = engine.get(), promise = std::move(started)]() mutable {
          raw->Run(options, factory, std::move(promise));
        });
  } catch (const std::system_error& error) {
    return MakeError(ErrorCode::kUnavailable, "starting the I/O thread: {}",
                     error.code().message());
  }
  PENSTOCK_TRY(outcome.get());
  return std::unique_ptr<Engine>(std::move(engine));
}

RequestEngine::~RequestEngine() {
  if (!io_thread_.joinable()) return;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    // Under the lock: without it the thread could end, and its drive with it, before the call. A
    // null drive was never made.
    if (drive_ != nullptr) drive_->Wake();
  }
  io_thread_.join();
}

void RequestEngine::Run(const EngineOptions& options, const DriveFactory& factory,
                        std::promise<Status> started) {
  EnterIoThread("penstock-io");
  if (Status bound = BindToCpus(options.cpus); !bound.ok()) return started.set_value(bound);
  Result<std::unique_ptr<Drive>> made = factory();
  if (!made.ok()) return started.set_value(made.error());
  const std::unique_ptr<Drive> drive = std::move(made).value();
  IoLoop* running = nullptr;
  IoLoop loop(*drive, options, [&](PendingRequest& request) { Finish(request, running->stats()); });
  running = &loop;
  name_ = drive->name();
  drive_ = drive.get();
  // From here on options and factory may be gone: Create returns.
  started.set_value(Status());
  Serve(loop);
}

void RequestEngine::Serve(IoLoop& loop) {
  while (TakeSubmitted(loop)) {
    loop.Fill();
    if (MayWait(loop)) loop.Reap();
  }
}

bool RequestEngine::TakeSubmitted(IoLoop& loop) {
  {
    MutexLock lock(mutex_);
    wake_on_submit_ = false;
    if (stopping_ && submitted_.empty() && loop.idle()) return false;
    taken_.swap(submitted_);
    taken_commands_.swap(commands_);
  }
  for (std::shared_ptr<PendingRequest>& request : taken_) loop.Add(std::move(request));
  taken_.clear();
  for (Command& command : taken_commands_) command(loop);
  taken_commands_.clear();
  return true;
}

bool RequestEngine::MayWait(const IoLoop& loop) {
  MutexLock lock(mutex_);
  if (!commands_.empty() || (!submitted_.empty() && loop.has_room())) return false;
  if (stopping_ && loop.idle()) return false;
  wake_on_submit_ = loop.has_room();
  return true;
}

void RequestEngine::Finish(PendingRequest& request, const EngineStats& stats) {
  {
    MutexLock lock(mutex_);
    stats_ = stats;
  }
  request.ticket->Complete(request.outcome);
  if (request.request.on_complete) {
    request.request.on_complete(request.outcome);
    // What the callback holds is let go before Drain returns.
    request.request.on_complete = nullptr;
  }
  MutexLock lock(mutex_);
  unfinished_.erase(request.sequence);
  request_finished_.NotifyAll();
}

Ticket RequestEngine::Submit(Request request) {
  auto pending = std::make_shared<PendingRequest>();
  pending->outcome = Validate(request);
  pending->request = std::move(request);
  pending->ticket = std::make_shared<Ticket::State>();
  Ticket ticket(pending->ticket);

  bool wake = false;
  {
    MutexLock lock(mutex_);
    pending->sequence = next_sequence_++;
    unfinished_.insert(unfinished_.end(), pending->sequence);
    submitted_.push_back(std::move(pending));
    wake = std::exchange(wake_on_submit_, false);
  }
  // From a callback there is nobody to wake: the I/O thread itself is submitting.
  if (wake && std::this_thread::get_id() != io_thread_.get_id()) drive_->Wake();
  return ticket;
}

Status Engine::Sync(const File& file) {
  return Submit({.operation = Operation::kSync, .file = &file}).Wait();
}

void RequestEngine::RunOnIoThread(Command command) {
  PENSTOCK_CHECK(std::this_thread::get_id() != io_thread_.get_id(),
                 "a completion callback called what waits for its own thread");
  const std::future<void> done = command.get_future();
  {
    MutexLock lock(mutex_);
    commands_.push_back(std::move(command));
  }
  drive_->Wake();
  done.wait();
}

void RequestEngine::Cancel() {
  RunOnIoThread(Command([](IoLoop& loop) { loop.Cancel(); }));
}

Result<std::string> RequestEngine::RegisterBuffers(std::span<const std::span<std::byte>> memory) {
  if (registered_buffers_ == Registration::kOff) return std::string();
  Result<std::string> line = std::string();
  RunOnIoThread(Command([&](IoLoop&) { line = drive_->RegisterBuffers(memory); }));
  if (line.ok() || registered_buffers_ == Registration::kOn) return line;
  return fmt::format("aio buffers are not registered: {}", line.error().message);
}

void RequestEngine::RegisterFile(const File& file) {
  RunOnIoThread(Command([&](IoLoop&) { drive_->RegisterFile(file); }));
}

void RequestEngine::UnregisterFile(const File& file) {
  RunOnIoThread(Command([&](IoLoop&) { drive_->UnregisterFile(file); }));
}

void RequestEngine::Drain() {
  PENSTOCK_CHECK(std::this_thread::get_id() != io_thread_.get_id(),
                 "Drain was called from a completion callback, which it would wait for");
  MutexLock lock(mutex_);
  const uint64_t end = next_sequence_;
  while (!unfinished_.empty() && *unfinished_.begin() < end) request_finished_.Wait(mutex_);
}

EngineStats RequestEngine::stats() const {
  MutexLock lock(mutex_);
  return stats_;
}

}  // namespace penstock::aio
