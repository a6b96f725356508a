#include "aio/probe.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>
#include <utility>

#include "base/check.h"

namespace penstock::aio {
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

Result<ProbeRig> ProbeRig::Create(const EngineOptions& options, ProbeFile* file) {
  PENSTOCK_ASSIGN(std::unique_ptr<Engine> engine, CreateEngine(options));
  const std::array memory = {file->buffers()};
  PENSTOCK_ASSIGN(std::string buffers_line, engine->RegisterBuffers(memory));
  PENSTOCK_ASSIGN(FileRegistration registration, engine->RegisterFile(file->file()));
  return ProbeRig(options, file, std::move(engine), std::move(registration),
                  std::move(buffers_line));
}

Result<Probe> ProbeRig::Measure(Direction direction, const LoopLimit& limit,
                                const StopRequested& stop) {
  const ProbeFile::Pass pass = {.block_size = block_size_,
                                .queue_depth = queue_depth_,
                                .direction = direction,
                                .limit = limit};
  const Seconds before = ProcessCpuTime();
  PENSTOCK_ASSIGN(const ClosedLoop::Outcome outcome, file_->Run(*engine_, pass, stop));
  const Seconds cpu = ProcessCpuTime() - before;
  if (stop()) return MakeError(ErrorCode::kCancelled, "interrupted");
  return MakeProbe(outcome, cpu);
}

double Percentile(std::vector<double> values, double fraction) {
  PENSTOCK_CHECK(!values.empty());
  const double rank = std::ceil(fraction * static_cast<double>(values.size()));
  const size_t index = static_cast<size_t>(std::max(rank, 1.0)) - 1;
  const auto nth = values.begin() + static_cast<std::ptrdiff_t>(std::min(index, values.size() - 1));
  std::ranges::nth_element(values, nth);
  return *nth;
}

}  // namespace penstock::aio
