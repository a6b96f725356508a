// D7: updates that are too large for the weights, and weights that grow.
//
// A tensor whose weights are all zero before its first update, such as a bias, counts as having rms
// kMinWeightRms. Threads: one.
#pragma once

#include <deque>
#include <optional>
#include <vector>

#include "numerics/quiet.h"
#include "numerics/report.h"
#include "numerics/step_numbers.h"

namespace penstock::train {

/// Returns the rms of an update over that of the weights before it, which counts as kMinWeightRms
/// at least; infinite where it is not a number.
double UpdateRatio(const WeightNumbers& weight);
/// Returns the ratio above which the update of a step is too large for the tensor's weights.
double UpdateLimit(const RunFacts& facts, const WatchedTensor& tensor, uint64_t step);

class UpdateSizeDetector {
 public:
  /// `facts` outlives the detector.
  explicit UpdateSizeDetector(const RunFacts& facts) : facts_(facts) {}

  /// A report names the tensor with the largest update relative to its weights.
  std::vector<Report> Updated(const UpdateNumbers& numbers);
  /// Records a finding of a step as reported.
  void Remember(uint64_t step);

 private:
  /// The tensor for which a ratio is largest among those above their limit.
  struct Worst {
    size_t tensor = 0;
    double ratio = 0;
    size_t count = 0;  ///< number of tensors above
    void Take(size_t index, double of);
  };
  bool Settled(uint64_t step) const;
  Worst LargestUpdate(const UpdateNumbers& numbers) const;
  /// Keeps the step's rms of all tensors, to which later ones are compared.
  Worst LargestGrowth(const UpdateNumbers& numbers);
  Report MakeReport(uint64_t step, const Worst& worst, const std::string& what) const;

  const RunFacts& facts_;
  std::deque<std::vector<double>> rms_;  ///< rms in the last kGrowthSteps settled steps
  Quiet large_;
  Quiet grown_;
};

}  // namespace penstock::train
