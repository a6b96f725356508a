// D2: activations close to the end of fp16, or rising towards it.
//
// In a bf16 run it reports once that the model would not fit fp16; in an fp32 run, nothing.
// Threads: one.
#pragma once

#include <optional>
#include <vector>

#include "numerics/history.h"
#include "numerics/quiet.h"
#include "numerics/report.h"
#include "numerics/step_numbers.h"

namespace penstock::train {

/// Returns log2(65504 / largest) in bits; infinite for zero, and NaN for what is not finite.
double HeadroomBits(double largest);

class HeadroomDetector {
 public:
  /// `facts` outlives the detector.
  explicit HeadroomDetector(const RunFacts& facts) : facts_(facts) {}

  /// The first output in the order of forward that is too large; else the first that rises.
  std::optional<Report> Step(const StepNumbers& numbers);
  /// Records a finding of a step as reported.
  void Remember(uint64_t step);

 private:
  /// One output of one layer, and its name.
  struct Output {
    const std::string* name = nullptr;
    uint32_t layer = 0;
    double largest = 0;
  };
  static constexpr size_t kOutputs = 3;  ///< outputs of a layer
  std::optional<Output> OutputAt(const StepNumbers& numbers, size_t index) const;
  size_t Count(const StepNumbers& numbers) const;
  std::optional<Output> FirstTooLarge(const StepNumbers& numbers) const;
  /// Adds the step's magnitudes to the histories. Returns the first output that rises.
  std::optional<Output> FirstRising(const StepNumbers& numbers);
  Report MakeReport(uint64_t step, const Output& output, bool rising) const;

  const RunFacts& facts_;
  Quiet large_;
  Quiet rising_;
  bool said_in_bf16_ = false;
  std::vector<History> bits_;  ///< log2 of each output's largest magnitude; in fp16 alone
};

}  // namespace penstock::train
