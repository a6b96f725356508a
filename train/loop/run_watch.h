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
#include <vector>

#include "base/folder.h"
#include "base/result.h"
#include "numerics/replayed_steps.h"
#include "numerics/watch.h"
#include "offload/layout.h"
#include "run/numerics_files.h"
#include "train/loop/trainer_job.h"
#include "zero/tensor_figures.h"

namespace penstock::train {

/// What is known of a run before its first step.
struct WatchedRun {
  RunFacts facts;
  std::vector<uint64_t> elements;  ///< of the tensors, in the order of facts.tensors
};
WatchedRun WatchedRunOf(const TrainJob& job, const offload::ModelLayout& layout);

class RunWatch {
 public:
  /// `run`: the run's folder, which outlives the object. `resumed_after`: the step after which the
  /// run goes on; none: it is new. `record`, if there is one, gets what the steps show, and
  /// outlives the object. Errors: of reading what RUN has of the steps before.
  static Result<std::unique_ptr<RunWatch>> Begin(const Folder& run, WatchedRun watched,
                                                 std::optional<uint64_t> resumed_after,
                                                 ReplayedSteps* record = nullptr);

  /// Takes the numbers of a step, and the figures of its tensors and of the update before it; the
  /// rest of `numbers` is filled in from them.
  void Step(StepNumbers numbers, const zero::StepFigures& figures);
  /// Says how long a step took.
  void Took(double seconds);
  /// Says that the weights after step `step` were not committed because of what they are. `line`
  /// ends the run, and is not said here.
  void CommitRefused(uint64_t step, const std::string& line);
  /// For a run that ends because of its numbers: leaves overflow.json.
  void End(uint64_t step, const std::string& line);

 private:
  RunWatch(const Folder& run, WatchedRun watched, NumericsWriter writer, ReplayedSteps* record)
      : run_(run),
        elements_(std::move(watched.elements)),
        watch_(std::move(watched.facts)),
        writer_(std::move(writer)),
        record_(record) {}
  Status Replay(uint64_t step);
  void Say(const std::vector<Report>& reports);
  void Updated(const std::vector<kernels::WeightFigures>& updates);
  void AddZeros(const std::vector<kernels::ZeroCounts>& zeros,
                std::vector<GradientNumbers>& gradients) const;
  void Keep(const Status& written);
  double MedianStep() const;

  const Folder& run_;
  const std::vector<uint64_t> elements_;
  NumericsWatch watch_;
  NumericsWriter writer_;
  ReplayedSteps* const record_;
  uint64_t last_applied_ = 0;   ///< step; 0: none of this process
  std::vector<double> rms_;     ///< of the tensors' weights after the last update; or empty
  std::deque<double> seconds_;  ///< of the last steps
  bool fails_ = false;          ///< a file could not be written, which was said
};

}  // namespace penstock::train
