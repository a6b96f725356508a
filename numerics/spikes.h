// D5 and D6: a loss or gradient norm that stands out from its last values.
//
// Non-finite values are not spikes: they have their own detector. Threads: one.
#pragma once

#include <optional>

#include "numerics/history.h"
#include "numerics/quiet.h"
#include "numerics/report.h"
#include "numerics/step_numbers.h"
#include "numerics/thresholds.h"

namespace penstock::train {

class LossSpikeDetector {
 public:
  /// `facts` outlives the detector.
  explicit LossSpikeDetector(const RunFacts& facts) : facts_(facts) {}

  std::optional<Report> Step(const StepNumbers& numbers);
  /// What was reported counts as not reported.
  void Forget() { quiet_.Forget(); }

 private:
  /// Returns the limit that this loss exceeds; nullopt if it is not a spike.
  std::optional<std::string> Above(double loss) const;

  const RunFacts& facts_;
  History losses_{kSpikeWindow};
  bool was_below_uniform_ = false;
  Quiet quiet_;
};

class NormSpikeDetector {
 public:
  std::optional<Report> Step(const StepNumbers& numbers);
  /// What was reported counts as not reported.
  void Forget() { quiet_.Forget(); }

 private:
  History norms_{kSpikeWindow};
  Quiet quiet_;
};

}  // namespace penstock::train
