// All detectors of a run: takes the figures of its steps and gives reports.
//
// A value without I/O and clocks: it does not measure, print or write. After a resume it is
// recreated, and restored from the rows of metrics.jsonl and the reports of numerics.jsonl.
// Threads: one.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "numerics/black_box.h"
#include "numerics/headroom.h"
#include "numerics/headroom_log.h"
#include "numerics/non_finite.h"
#include "numerics/overflow_rate.h"
#include "numerics/report.h"
#include "numerics/spikes.h"
#include "numerics/step_numbers.h"
#include "numerics/streak.h"
#include "numerics/underflow.h"
#include "numerics/update_size.h"

namespace penstock::train {

class NumericsWatch {
 public:
  explicit NumericsWatch(RunFacts facts);
  const RunFacts& facts() const { return facts_; }
  NumericsWatch(const NumericsWatch&) = delete;
  NumericsWatch& operator=(const NumericsWatch&) = delete;

  /// Returns the reports of a step. One of severity kStop is the last: the run ends with this step
  /// (exit code 4).
  std::vector<Report> Step(const StepNumbers& numbers);
  /// Returns the reports of a step's update, which may come after the next step.
  std::vector<Report> Updated(const UpdateNumbers& numbers);
  /// Says that the update of a step is known to have broken the weights, and returns that as a
  /// report. `line`: the text with which the run ends for it.
  Report Broken(uint64_t step, const std::string& line);
  /// Returns the step's line for headroom.jsonl, if it has one.
  std::optional<std::string> HeadroomLine(const StepNumbers& numbers) {
    return headroom_log_.Step(numbers);
  }

  /// Takes a row of metrics.jsonl of before a resume, without reporting anything. In the order of
  /// steps, before the first Step; the last RowsToReplay suffice.
  void Replay(const StepNumbers& row);
  /// Records a report from before the resume at step `resumed`: its finding counts as reported
  /// until then.
  void Remember(const Report& report, uint64_t resumed);
  /// Says that the rows and reports of before the resume are all there.
  void Resumed() { non_finite_.Resumed(); }
  /// Earlier spikes, taken by a Replay, count as not reported, for a caller that only considers
  /// later steps.
  void ForgetSpikes();
  /// How many rows of metrics.jsonl matter.
  uint64_t RowsToReplay() const;

  /// Whether the numbers are such that no commit should be made now: the last forward was not
  /// finite, or the weights are broken.
  bool Doubtful() const { return !forward_finite_ || broken_by_.has_value(); }
  /// Returns the earliest report that can have led to the run's end now.
  std::optional<Report> FirstCause() const;
  /// Returns the text of overflow.json for a run that ends at `step` with `line`.
  std::string BlackBoxJson(uint64_t step, const std::string& line) const;

 private:
  /// The update that broke the weights, as far as it is known in `step`.
  std::optional<uint64_t> BrokenBy(uint64_t step) const;
  void Keep(const std::vector<Report>& reports);

  const RunFacts facts_;
  NonFiniteDetector non_finite_;
  HeadroomDetector headroom_;
  StreakDetector streak_;
  LossSpikeDetector loss_spike_;
  NormSpikeDetector norm_spike_;
  UpdateSizeDetector update_size_;
  UnderflowDetector underflow_;
  OverflowRateDetector overflow_rate_;
  HeadroomLog headroom_log_;
  BlackBox box_;

  std::deque<Report> recent_;          ///< reports of the last steps
  uint64_t step_ = 0;                  ///< the last one
  uint64_t trouble_began_ = 0;         ///< the first of the skipped steps in a row; 0: none
  bool forward_finite_ = true;         ///< whether the last step's forward was finite
  std::optional<uint64_t> broken_by_;  ///< update after which weights are not finite
  std::optional<uint64_t> too_large_;  ///< the last update that was reported as too large
};

}  // namespace penstock::train
