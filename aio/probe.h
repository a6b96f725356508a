// One measurement of a drive: an engine with given options, in one direction.
//
// Threads: one at a time. No other substantial work may run in the process, because CPU time is
// measured for all of it.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "aio/aio.h"
#include "aio/closed_loop.h"
#include "aio/probe_file.h"
#include "base/result.h"

namespace penstock::aio {

struct Probe {
  double gbps = 0;          ///< GB/s (10^9), reads and writes together
  double median_us = 0;     ///< time from the submission of a block to its completion
  double p99_us = 0;        ///< nearest rank: the largest of fewer than 100 blocks
  double cpu_s_per_gb = 0;  ///< CPU seconds of the whole process, user and system
};

/// An engine to which the file and the memory are known, and the file itself. Owns the engine,
/// borrows the file.
class ProbeRig {
 public:
  /// Probes keep `options.queue_depth` blocks of `options.block_size` in flight. All of the file's
  /// buffers are registered with the engine, so that a memlock limit means the same for every block
  /// size and depth. Errors: kUnavailable if the engine or, with `registered_buffers` kOn, the
  /// registration is not available.
  static Result<ProbeRig> Create(const EngineOptions& options, ProbeFile* file);

  /// Errors: those of the drive; kCancelled if `stop` returned true.
  Result<Probe> Measure(Direction direction, const LoopLimit& limit, const StopRequested& stop);

  /// The line of Engine::RegisterBuffers.
  const std::string& registration() const { return buffers_line_; }

 private:
  ProbeRig(const EngineOptions& options, ProbeFile* file, std::unique_ptr<Engine> engine,
           FileRegistration registration, std::string buffers_line)
      : block_size_(options.block_size),
        queue_depth_(options.queue_depth),
        file_(file),
        engine_(std::move(engine)),
        registration_(std::move(registration)),
        buffers_line_(std::move(buffers_line)) {}

  Bytes block_size_;
  int queue_depth_;
  ProbeFile* file_;
  std::unique_ptr<Engine> engine_;
  FileRegistration registration_;  ///< declared after the engine, so that it ends first
  std::string buffers_line_;
};

/// Returns the smallest value that is not below the share `fraction` of all (nearest rank).
/// Precondition: not empty.
double Percentile(std::vector<double> values, double fraction);

}  // namespace penstock::aio
