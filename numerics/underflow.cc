#include "numerics/underflow.h"

#include <fmt/format.h>

#include <algorithm>

#include "numerics/advice.h"
#include "numerics/text.h"
#include "numerics/thresholds.h"

namespace penstock::train {
namespace {

/// The share of the values other than zero that are zero in fp16.
double LostShare(const WatchedTensor& tensor, const GradientNumbers& gradient) {
  if (!gradient.zeros || (!gradient.zeros_before && !tensor.layer)) return 0;
  const double before = gradient.zeros_before.value_or(0);
  return before < 1 ? (*gradient.zeros - before) / (1 - before) : 0;
}

}  // namespace

std::optional<Report> UnderflowDetector::Step(const StepNumbers& numbers) {
  if (facts_.dtype != DType::kFloat16 || numbers.skipped) return {};
  size_t worst = 0, count = 0;
  double share = 0;
  for (size_t i = 0; i < std::min(numbers.gradients.size(), facts_.tensors.size()); ++i) {
    const double lost = LostShare(facts_.tensors[i], numbers.gradients[i]);
    if (lost <= kUnderflowShare) continue;
    ++count;
    if (lost > share) {
      share = lost;
      worst = i;
    }
  }
  if (count == 0 || !quiet_.Say(numbers.step)) return {};
  const WatchedTensor& tensor = facts_.tensors[worst];
  return Report{
      .step = numbers.step,
      .kind = ReportKind::kUnderflow,
      .tensor = tensor.name,
      .layer = tensor.layer,
      .pass = Pass::kBackward,
      .value = share,
      .message = fmt::format(
          "step {}: {:.0f} % of the gradient of {} becomes zero in fp16 at loss scale {} ({} of {} "
          "tensors lose more than {:.0f} %); {}",
          numbers.step, 100 * share, tensor.name, ScaleText(numbers.loss_scale), count,
          facts_.tensors.size(), 100 * kUnderflowShare,
          Advice(ReportKind::kUnderflow, {}, {.dynamic_loss_scale = facts_.dynamic_loss_scale}))};
}

}  // namespace penstock::train
