#include "train/tune_probe.h"

#include <array>
#include <ctime>
#include <span>
#include <string>
#include <utility>

#include "base/check.h"
#include "train/tune_loop.h"

namespace penstock::train {
namespace {

/// CPU time of all threads of this process, those that the kernel runs for its I/O among them.
Seconds ProcessCpuTime() {
  struct timespec now {};
  PENSTOCK_CHECK(::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now) == 0);
  return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

Probe MakeProbe(const ClosedLoop::Outcome& outcome, Seconds cpu) {
  const double gigabytes = static_cast<double>(outcome.moved.value) / 1e9;
  return {.gbps = gigabytes / outcome.elapsed.count(),
          .median_us = Percentile(outcome.latencies_us, 0.5),
          .p99_us = Percentile(outcome.latencies_us, 0.99),
          .cpu_s_per_gb = cpu.count() / gigabytes};
}

}  // namespace

Result<ProbeRig> ProbeRig::Create(const TunePoint& point, TuneFile* file) {
  PENSTOCK_ASSIGN(std::unique_ptr<aio::Engine> engine,
                  aio::CreateEngine({.kind = point.engine,
                                     .block_size = point.block_size,
                                     .queue_depth = point.queue_depth,
                                     .thread_count = point.thread_count}));
  const std::array memory = {file->buffers().first(point.in_flight().value)};
  PENSTOCK_TRY(engine->RegisterBuffers(memory).status());
  PENSTOCK_ASSIGN(aio::FileRegistration registration, engine->RegisterFile(file->file()));
  return ProbeRig(point, file, std::move(engine), std::move(registration));
}

Result<Probe> ProbeRig::Measure(Direction direction, const ProbeLimit& limit,
                                const StopRequested& stop) {
  ClosedLoop loop({.engine = engine_.get(),
                   .file = file_,
                   .block_size = point_.block_size,
                   .queue_depth = point_.queue_depth,
                   .direction = direction,
                   .limit = limit,
                   .stop = stop});
  const Seconds before = ProcessCpuTime();
  PENSTOCK_ASSIGN(const ClosedLoop::Outcome outcome, loop.Run());
  const Seconds cpu = ProcessCpuTime() - before;
  if (stop()) return MakeError(ErrorCode::kCancelled, "interrupted");
  return MakeProbe(outcome, cpu);
}

}  // namespace penstock::train
