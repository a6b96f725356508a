#include "aio/aio.h"

#include <sched.h>

#include <algorithm>
#include <string>
#include <utility>

#include "aio/fault_drive.h"
#include "aio/forgetful_drive.h"
#include "aio/libaio_drive.h"
#include "aio/request_engine.h"
#include "aio/thread_drive.h"
#include "aio/throttled_drive.h"
#include "aio/uring_drive.h"
#include "aio/watched_drive.h"

namespace penstock::aio {
namespace {

Status CheckRange(const char* name, double value, double low, double high) {
  if (value >= low && value <= high) return {};
  return MakeError(ErrorCode::kInvalidArgument, "aio option {} is {}; it must be {} to {}", name,
                   value, low, high);
}

Status CheckFault(const Fault& fault, const FaultPlan& plan) {
  if (!IsDamage(fault.kind)) return {};
  if (fault.operation.value_or(Operation::kWrite) != Operation::kWrite) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "aio option faults has damage that a {} does; only a write does damage",
                     ToString(*fault.operation));
  }
  if (!plan.lose_unsynced) return {};
  return MakeError(ErrorCode::kInvalidArgument,
                   "aio option faults has damage, and lose_unsynced is set: what a write finds in "
                   "its file is not there before a sync; choose one of them");
}

Status CheckFaults(const FaultPlan& plan) {
  PENSTOCK_TRY(CheckRange("error_chance", plan.error_chance, 0, 1));
  PENSTOCK_TRY(CheckRange("transient_chance", plan.transient_chance, 0, 1));
  PENSTOCK_TRY(CheckRange("short_chance", plan.short_chance, 0, 1));
  PENSTOCK_TRY(CheckRange("delay_chance", plan.delay_chance, 0, 1));
  for (const Fault& fault : plan.faults) PENSTOCK_TRY(CheckFault(fault, plan));
  if (plan.lose_unsynced || (!plan.crash_at_block && !plan.crash_at_sync)) return {};
  return MakeError(ErrorCode::kInvalidArgument,
                   "aio option {} is set without lose_unsynced, which it is the end of",
                   plan.crash_at_block ? "crash_at_block" : "crash_at_sync");
}

Status CheckSimulate(const SimulatedDrive& speed, EngineKind kind) {
  constexpr double kMaxGbps = 1e6;
  constexpr double kMaxLatencyUs = 1e9;
  PENSTOCK_TRY(CheckRange("simulate.read_gbps", speed.read_gbps, 0, kMaxGbps));
  PENSTOCK_TRY(CheckRange("simulate.write_gbps", speed.write_gbps, 0, kMaxGbps));
  PENSTOCK_TRY(CheckRange("simulate.latency_us", speed.latency_us, 0, kMaxLatencyUs));
  if (kind == EngineKind::kAuto || kind == EngineKind::kThreads) return {};
  return MakeError(ErrorCode::kInvalidArgument,
                   "aio options: a simulated drive is a thread engine, not {}; use auto or threads",
                   ToString(kind));
}

Status CheckPolling(const EngineOptions& options) {
  if (!options.sqpoll && !options.iopoll) return {};
  const bool may_be_uring = options.kind == EngineKind::kAuto || options.kind == EngineKind::kUring;
  if (may_be_uring && !options.simulate) return {};
  return MakeError(ErrorCode::kInvalidArgument,
                   "aio options: {} is for io_uring only, and the engine is {}; switch it off",
                   options.sqpoll ? "sqpoll" : "iopoll",
                   options.simulate ? "simulated" : ToString(options.kind));
}

Status CheckOptions(const EngineOptions& options) {
  if (options.block_size < kMinBlockSize || options.block_size > kMaxBlockSize ||
      options.block_size.value % kMinBlockSize.value != 0) {
    return MakeError(
        ErrorCode::kInvalidArgument,
        "aio option block_size is {} bytes; it must be a multiple of {} from {} KiB to {} GiB",
        options.block_size.value, kMinBlockSize.value, kMinBlockSize / 1_KiB,
        kMaxBlockSize / 1_GiB);
  }
  PENSTOCK_TRY(CheckRange("queue_depth", options.queue_depth, 1, kMaxQueueDepth));
  PENSTOCK_TRY(CheckRange("thread_count", options.thread_count, 1, kMaxThreadCount));
  if (options.faults) PENSTOCK_TRY(CheckFaults(*options.faults));
  if (options.simulate) PENSTOCK_TRY(CheckSimulate(*options.simulate, options.kind));
  if (options.on_stall && options.stall_after < std::chrono::milliseconds(1)) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "aio option stall_after is {} ns; it must be a millisecond or more",
                     options.stall_after.count());
  }
  for (const int cpu : options.cpus) PENSTOCK_TRY(CheckRange("cpus", cpu, 0, CPU_SETSIZE - 1));
  return CheckPolling(options);
}

std::unique_ptr<Drive> MakeThreadDrive(const EngineOptions& options, Mutex& serving) {
  auto threads = std::make_unique<ThreadDrive>(serving, options.thread_count);
  if (!options.simulate) return threads;
  return std::make_unique<ThrottledDrive>(std::move(threads), *options.simulate,
                                          options.queue_depth);
}

Result<std::unique_ptr<Drive>> MakeUringDrive(const EngineOptions& options) {
  PENSTOCK_ASSIGN(std::unique_ptr<UringDrive> ring,
                  UringDrive::Create({.queue_depth = options.queue_depth,
                                      .single_submit = options.single_submit,
                                      .sqpoll = options.sqpoll,
                                      .iopoll = options.iopoll,
                                      .cpus = options.cpus}));
  return std::unique_ptr<Drive>(std::move(ring));
}

Result<std::unique_ptr<Drive>> MakeLibaioDrive(const EngineOptions& options) {
  PENSTOCK_ASSIGN(std::unique_ptr<LibaioDrive> drive,
                  LibaioDrive::Create(options.queue_depth, options.single_submit));
  return std::unique_ptr<Drive>(std::move(drive));
}

Result<std::unique_ptr<Drive>> MakePlainDrive(const EngineOptions& options, EngineKind kind,
                                              Mutex& serving) {
  if (kind == EngineKind::kUring) return MakeUringDrive(options);
  if (kind == EngineKind::kLibaio) return MakeLibaioDrive(options);
  return MakeThreadDrive(options, serving);
}

Result<std::unique_ptr<Drive>> MakeFaultyDrive(const EngineOptions& options, EngineKind kind,
                                               Mutex& serving) {
  PENSTOCK_ASSIGN(std::unique_ptr<Drive> drive, MakePlainDrive(options, kind, serving));
  if (!options.faults) return drive;
  FaultDrive::OnFailedSync on_failed_sync;
  if (options.faults->lose_unsynced) {
    auto cache =
        std::make_unique<ForgetfulDrive>(std::move(drive), *options.faults, options.queue_depth);
    on_failed_sync = [raw = cache.get()](int fd) { raw->LoseSome(fd); };
    drive = std::move(cache);
  }
  return std::unique_ptr<Drive>(std::make_unique<FaultDrive>(
      std::move(drive), *options.faults, options.queue_depth, std::move(on_failed_sync)));
  // The analyzer loses the owner inside Result's variant; LeakSanitizer runs over this in the
  // tests. NOLINTNEXTLINE(clang-analyzer-cplusplus.NewDeleteLeaks)
}

Result<std::unique_ptr<Drive>> MakeDrive(const EngineOptions& options, EngineKind kind,
                                         Mutex& serving) {
  PENSTOCK_ASSIGN(std::unique_ptr<Drive> drive, MakeFaultyDrive(options, kind, serving));
  if (!options.on_stall) return drive;
  return std::unique_ptr<Drive>(std::make_unique<WatchedDrive>(
      std::move(drive), options.queue_depth, options.stall_after, options.on_stall));
}

Result<std::unique_ptr<Engine>> MakeEngine(const EngineOptions& options, EngineKind kind) {
  return RequestEngine::Create(options,
                               [&](Mutex& serving) { return MakeDrive(options, kind, serving); });
}

Result<std::unique_ptr<Engine>> MakeFirstAvailable(const EngineOptions& options,
                                                   std::string& notice) {
  std::string why_not;
  for (const EngineKind kind : {EngineKind::kUring, EngineKind::kLibaio}) {
    Result<std::unique_ptr<Engine>> engine = MakeEngine(options, kind);
    const bool unavailable = !engine.ok() && engine.error().code == ErrorCode::kUnavailable;
    if (!unavailable) {
      notice = fmt::format("aio engine {}: {}", ToString(kind),
                           why_not.empty() ? "the kernel offers it" : why_not);
      return engine;
    }
    why_not += (why_not.empty() ? "" : "; ") + engine.error().message;
  }
  notice = fmt::format("aio engine threads: {}", why_not);
  return MakeEngine(options, EngineKind::kThreads);
}

Result<std::unique_ptr<Engine>> MakeNamed(const EngineOptions& options, EngineKind kind) {
  Result<std::unique_ptr<Engine>> engine = MakeEngine(options, kind);
  if (engine.ok() || engine.error().code != ErrorCode::kUnavailable) return engine;
  const bool polls = options.sqpoll || options.iopoll;
  return MakeError(ErrorCode::kUnavailable, "{}; {}", engine.error().message,
                   polls ? "switch sqpoll and iopoll off" : "choose another aio engine, or auto");
}

}  // namespace

const char* ToString(Operation operation) {
  switch (operation) {
    case Operation::kRead:
      return "read";
    case Operation::kWrite:
      return "write";
    case Operation::kSync:
      return "sync";
  }
  return "?";
}

Status Engine::Sync(const File& file) {
  return Submit({.operation = Operation::kSync, .file = &file}).Wait();
}

const char* ToString(EngineKind kind) {
  switch (kind) {
    case EngineKind::kAuto:
      return "auto";
    case EngineKind::kUring:
      return "io_uring";
    case EngineKind::kLibaio:
      return "libaio";
    case EngineKind::kThreads:
      return "threads";
  }
  return "?";
}

Result<std::unique_ptr<Engine>> CreateEngine(const EngineOptions& options, std::string* notice) {
  PENSTOCK_TRY(CheckOptions(options));
  std::string line;
  if (notice == nullptr) notice = &line;
  if (options.simulate) {
    *notice =
        fmt::format("aio engine simulated: read {} GB/s, write {} GB/s{}, latency {} us",
                    options.simulate->read_gbps, options.simulate->write_gbps,
                    options.simulate->shared ? " (shared)" : "", options.simulate->latency_us);
    return MakeEngine(options, EngineKind::kThreads);
  }
  // Only io_uring polls, so requesting polling selects it.
  const bool polls = options.sqpoll || options.iopoll;
  if (options.kind == EngineKind::kAuto && !polls) return MakeFirstAvailable(options, *notice);
  const EngineKind kind = polls ? EngineKind::kUring : options.kind;
  *notice = fmt::format("aio engine {}: as asked for", ToString(kind));
  return MakeNamed(options, kind);
}

}  // namespace penstock::aio
