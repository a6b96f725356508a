// One measurement of one configuration in one direction.
//
// Threads: one at a time, with nothing else of weight running in the process, since CPU time is
// measured for all of it.
#pragma once

#include <memory>
#include <utility>

#include "aio/aio.h"
#include "base/result.h"
#include "train/tune_file.h"
#include "train/tune_result.h"

namespace penstock::train {

/// An engine as the configuration says, to which the file and the memory are known, and the file
/// itself. Owns the engine, borrows the file.
class ProbeRig {
 public:
  /// Errors: kUnavailable where the engine is not to be had.
  static Result<ProbeRig> Create(const TunePoint& point, TuneFile* file);
  /// Errors: of the drive; kCancelled where `stop` said so.
  Result<Probe> Measure(Direction direction, const ProbeLimit& limit, const StopRequested& stop);

 private:
  ProbeRig(const TunePoint& point, TuneFile* file, std::unique_ptr<aio::Engine> engine,
           aio::FileRegistration registration)
      : point_(point),
        file_(file),
        engine_(std::move(engine)),
        registration_(std::move(registration)) {}

  TunePoint point_;
  TuneFile* file_;
  std::unique_ptr<aio::Engine> engine_;
  aio::FileRegistration registration_;
};

}  // namespace penstock::train
