#include "numerics/non_finite.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "numerics/text.h"
#include "numerics/thresholds.h"

namespace penstock::train {
namespace {

bool IsSound(const StepNumbers& numbers) {
  const auto sound = [](const GradientNumbers& gradient) { return gradient.nonfinite == 0; };
  return numbers.forward_finite && !numbers.skipped && std::isfinite(numbers.grad_norm) &&
         std::ranges::all_of(numbers.gradients, sound);
}

NonFinitePlace FirstOfForward(const RunFacts& facts, const StepNumbers& numbers) {
  NonFinitePlace place{.pass = Pass::kForward, .rows = numbers.rows};
  const auto broken = [](const std::optional<double>& largest) {
    return largest && !std::isfinite(*largest);
  };
  for (size_t i = 0; i < numbers.layers.size() && i < facts.layers.size(); ++i) {
    const LayerNumbers& layer = numbers.layers[i];
    if (broken(layer.attention)) {
      place.tensor = facts.layers[i].attention;
    } else if (broken(layer.mlp)) {
      place.tensor = facts.layers[i].mlp;
    } else if (broken(layer.residual)) {
      place.tensor = facts.layers[i].residual;
    } else {
      continue;
    }
    place.layer = static_cast<uint32_t>(i);
    return place;
  }
  return place;
}

NonFinitePlace FirstOfBackward(const RunFacts& facts, const StepNumbers& numbers) {
  NonFinitePlace place{.pass = Pass::kBackward, .rows = numbers.rows};
  for (size_t i = std::min(numbers.gradients.size(), facts.tensors.size()); i-- > 0;) {
    if (numbers.gradients[i].nonfinite == 0) continue;
    place.tensor = facts.tensors[i].name;
    place.layer = facts.tensors[i].layer;
    place.count = static_cast<double>(numbers.gradients[i].nonfinite);
    return place;
  }
  return place;
}

/// "h.1.mlp.c_proj is the first value that is not finite, in forward (layer 1)".
std::string Finding(const NonFinitePlace& place, const StepNumbers& numbers) {
  const std::string where = PlaceText(place.layer, place.micro_batch, place.rows);
  const std::string in = where.empty() ? "" : " (" + where + ")";
  if (place.pass != Pass::kBackward) {
    return place.tensor ? fmt::format("{} is the first value that is not finite, in forward{}",
                                      *place.tensor, in)
                        : fmt::format("the loss is {}, in forward{}", NumberText(numbers.loss), in);
  }
  const std::string tensor = place.tensor ? "the gradient of " + *place.tensor : "the gradient";
  return fmt::format("{} is the first that is not finite, in backward{}", tensor, in);
}

std::string Explanation(const NonFinitePlace& place, const StepNumbers& numbers,
                        const Situation& situation) {
  const bool fp16 = situation.dtype == DType::kFloat16;
  if (place.pass != Pass::kBackward || !fp16 || situation.broken_by) return "";
  return fmt::format("forward and weights are finite, so the loss scale {} is too high; ",
                     ScaleText(numbers.loss_scale));
}

}  // namespace

NonFinitePlace FindNonFinite(const RunFacts& facts, const StepNumbers& numbers) {
  const Pass failed = numbers.forward_finite ? Pass::kBackward : Pass::kForward;
  if (!numbers.first || numbers.first->pass != failed) {
    return numbers.forward_finite ? FirstOfBackward(facts, numbers)
                                  : FirstOfForward(facts, numbers);
  }
  return {.pass = numbers.first->pass,
          .tensor = numbers.first->tensor,
          .layer = numbers.first->layer,
          .micro_batch = numbers.first->micro_batch,
          .rows = numbers.first->rows};
}

bool NonFiniteDetector::JustDoubled(const StepNumbers& numbers) const {
  return scale_ && numbers.loss_scale > *scale_;
}

std::optional<Report> NonFiniteDetector::Step(const StepNumbers& numbers,
                                              const std::optional<uint64_t>& broken_by) {
  forwards_ = numbers.forward_finite ? 0 : forwards_ + 1;
  streak_rule_.Step(numbers.step, numbers.skipped ? streak_rule_.skipped() + 1 : 0,
                    numbers.steps_to_stop);
  if (IsSound(numbers)) {
    streak_ = 0;
    said_.reset();
    scale_ = numbers.loss_scale;
    return {};
  }
  const bool begins = ++streak_ == 1;
  const Pass pass = numbers.forward_finite ? Pass::kBackward : Pass::kForward;
  if (begins && pass == Pass::kBackward && JustDoubled(numbers)) said_ = Pass::kBackward;
  const bool stop = forwards_ >= kForwardsToStop;
  if (!stop && (said_ == Pass::kForward || said_ == pass)) return {};
  if (pass == Pass::kBackward && facts_.dynamic_loss_scale) {
    if (streak_rule_.said()) said_ = pass;
    if (said_ == pass || streak_ < kOverflowsToReport) return {};
  }
  said_ = pass;
  NonFinitePlace place = FindNonFinite(facts_, numbers);
  const Situation situation{.dtype = facts_.dtype,
                            .dynamic_loss_scale = facts_.dynamic_loss_scale,
                            .broken_by = broken_by};
  const bool mends = !stop && place.pass == Pass::kBackward && situation.dynamic_loss_scale &&
                     !situation.broken_by;
  Report report{.step = numbers.step,
                .kind = ReportKind::kNonFinite,
                .severity = stop    ? Severity::kStop
                            : mends ? Severity::kInfo
                                    : Severity::kWarning,
                .tensor = place.tensor,
                .layer = place.layer,
                .pass = place.pass,
                .micro_batch = place.micro_batch,
                .rows = place.rows,
                .value = place.count};
  report.message = fmt::format(
      "step {}: {}{}; {}{}", numbers.step,
      stop ? fmt::format("{} forwards in a row were not finite, and the run stops: ", forwards_)
           : "",
      Finding(place, numbers), Explanation(place, numbers, situation),
      Advice(ReportKind::kNonFinite, place.pass, situation));
  return report;
}

}  // namespace penstock::train
