// D8: gradients that become zero in fp16.
//
// Threads: one.
#pragma once

#include <optional>

#include "numerics/quiet.h"
#include "numerics/report.h"
#include "numerics/step_numbers.h"

namespace penstock::train {

class UnderflowDetector {
 public:
  /// `facts` outlives the detector.
  explicit UnderflowDetector(const RunFacts& facts) : facts_(facts) {}

  /// Names the tensor that loses most. Where it is not known what was zero before the rounding,
  /// tensors outside of layers are left out: an embedding's gradient is zero for every token that
  /// the step does not use.
  std::optional<Report> Step(const StepNumbers& numbers);
  /// Records a finding of a step as reported.
  void Remember(uint64_t step) { static_cast<void>(quiet_.Say(step)); }

 private:
  const RunFacts& facts_;
  Quiet quiet_;
};

}  // namespace penstock::train
