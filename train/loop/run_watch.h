// What rank 0 does with the numbers of a run: hands those of each step to the detectors, says what
// they find on stderr, and keeps it in RUN (docs/numerics.md).
//
// A file that cannot be written does not end a training: that is said once, and watching goes on.
// Threads: one.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "base/folder.h"
#include "base/result.h"
#include "offload/layout.h"
#include "train/loop/trainer_job.h"
#include "train/numerics/watch.h"
#include "train/run/numerics_files.h"

namespace penstock::train {

/// Returns what the detectors have to know of a run.
RunFacts FactsOf(const TrainJob& job, const offload::ModelLayout& layout);

class RunWatch {
 public:
  /// `run`: the run's folder, which outlives the object. `resumed_after`: the step after which the
  /// run goes on; none: it is new. Errors: of reading what RUN has of the steps before.
  static Result<std::unique_ptr<RunWatch>> Begin(const Folder& run, RunFacts facts,
                                                 std::optional<uint64_t> resumed_after);

  /// Takes the figures of a step; median_step_s is filled in.
  void Step(StepNumbers numbers);
  /// Says how long a step took.
  void Took(double seconds);
  /// For a run that ends because of its numbers: leaves overflow.json.
  void End(uint64_t step, const std::string& line);

 private:
  RunWatch(const Folder& run, RunFacts facts, NumericsWriter writer)
      : run_(run), watch_(std::move(facts)), writer_(std::move(writer)) {}
  Status Replay(uint64_t step);
  void Keep(const Status& written);
  double MedianStep() const;

  const Folder& run_;
  NumericsWatch watch_;
  NumericsWriter writer_;
  std::deque<double> seconds_;  ///< of the last steps
  bool fails_ = false;          ///< a file could not be written, which was said
};

}  // namespace penstock::train
