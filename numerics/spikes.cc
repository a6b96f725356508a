#include "numerics/spikes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "numerics/advice.h"
#include "numerics/text.h"

namespace penstock::train {

std::optional<std::string> LossSpikeDetector::Above(double loss) const {
  const double uniform = std::log(static_cast<double>(facts_.vocabulary));
  const bool known = losses_.size() >= kMinHistory;
  const double over = known ? kFarOverUniform : kOverUniform;
  if (was_below_uniform_ && loss > uniform + over) {
    return fmt::format("ln(vocabulary) + {} = {}, which no model needs to reach", over,
                       NumberText(uniform + over));
  }
  if (!known) return {};
  const double median = losses_.Median();
  const double reach = kSpikeReach * (losses_.LargestBut(kSpikeApproach) - median);
  const double bar = std::max({median + kSpikeDeviations * losses_.MedianDeviation(),
                               kSpikeRatio * median, median + reach});
  if (loss <= bar) return {};
  return fmt::format("{}, which the last {} losses (median {}) leave room for", NumberText(bar),
                     losses_.size(), NumberText(median));
}

std::optional<Report> LossSpikeDetector::Step(const StepNumbers& numbers) {
  const double loss = numbers.loss;
  if (!std::isfinite(loss)) return {};
  const std::optional<std::string> above = Above(loss);
  losses_.Add(loss);
  if (facts_.vocabulary > 1 && loss < std::log(static_cast<double>(facts_.vocabulary))) {
    was_below_uniform_ = true;
  }
  if (!above || !quiet_.Say(numbers.step)) return {};
  return Report{
      .step = numbers.step,
      .kind = ReportKind::kLossSpike,
      .pass = Pass::kForward,
      .rows = numbers.rows,
      .value = loss,
      .message = fmt::format("step {}: the loss is {}, above {}; {}", numbers.step,
                             NumberText(loss), *above, Advice(ReportKind::kLossSpike, {}, {}))};
}

std::optional<Report> NormSpikeDetector::Step(const StepNumbers& numbers) {
  const double norm = numbers.grad_norm;
  if (!std::isfinite(norm) || numbers.skipped) return {};
  const size_t known = norms_.size();
  const double median = known == 0 ? 0 : norms_.Median();
  const bool full = norms_.full();
  norms_.Add(norm);
  const bool spike = full && median > 0 && norm > kNormRatio * median;
  if (!spike || !quiet_.Say(numbers.step)) return {};
  return Report{
      .step = numbers.step,
      .kind = ReportKind::kNormSpike,
      .pass = Pass::kBackward,
      .rows = numbers.rows,
      .value = norm,
      .message = fmt::format(
          "step {}: the norm of the gradient is {}, {:.0f} times the median of the last {}; {}",
          numbers.step, NumberText(norm), norm / median, known,
          Advice(ReportKind::kNormSpike, {}, {}))};
}

}  // namespace penstock::train
