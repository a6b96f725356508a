// Monitors the numerics of a run: gives each step's values to the detectors, reports their
// findings, and writes them into RUN (docs/numerics.md).
//
// A file that cannot be written does not end a training: that is reported once, and monitoring
// continues. Threads: as of a StepObserver.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/folder.h"
#include "base/notify.h"
#include "base/result.h"
#include "numerics/replayed_steps.h"
#include "numerics/watch.h"
#include "run/observers/step_observer.h"
#include "run/rows/numerics_files.h"
#include "zero/states/tensor_figures.h"

namespace penstock::train {

/// Facts about a run before its first step.
struct WatchedRun {
  RunFacts facts;
  std::vector<uint64_t> elements;  ///< of the tensors, in the order of facts.tensors
};

class RunWatch final : public StepObserver {
 public:
  /// `run`: the run's folder, which outlives the object. `resumed_after`: the step after which the
  /// run resumes; none: it is new. `notify` gets the findings. `record`, if any, gets the values of
  /// the steps, and outlives the object. Errors: of reading RUN's files about earlier steps.
  static Result<std::unique_ptr<RunWatch>> Begin(const Folder& run, WatchedRun watched,
                                                 std::optional<uint64_t> resumed_after,
                                                 Notify notify, ReplayedSteps* record = nullptr);

  /// Takes the numbers of a step, and the figures of its tensors and of the update before it; the
  /// rest of the numbers is filled in from them.
  Status AfterStep(DoneStep& step) override;
  /// Takes how long a step took.
  Status AfterRow(const ClosedRow& closed) override;
  /// Keeps the reason, which is reported when the run ends.
  void CommitRefused(uint64_t step, const std::string& why) override;
  /// For a run that ends because of its numbers: leaves overflow.json.
  void AtEnd(const TrainingEnd& end) override;

 private:
  RunWatch(const Folder& run, WatchedRun watched, NumericsWriter writer, Notify notify,
           ReplayedSteps* record)
      : run_(run),
        notify_(std::move(notify)),
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
  const Notify notify_;
  const std::vector<uint64_t> elements_;
  NumericsWatch watch_;
  NumericsWriter writer_;
  ReplayedSteps* const record_;
  uint64_t last_applied_ = 0;   ///< last applied step; 0: none in this process
  std::vector<double> rms_;     ///< RMS of the tensors' weights after the last update; or empty
  std::deque<double> seconds_;  ///< duration of the last steps
  bool fails_ = false;          ///< a failure to write a file was reported
};

}  // namespace penstock::train
