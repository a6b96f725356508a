#include "numerics/replayed_steps.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "numerics/thresholds.h"
#include "numerics/update_size.h"

namespace penstock::train {
namespace {

bool IsBroken(const WeightNumbers& weight) {
  return !std::isfinite(weight.largest) || std::isnan(weight.rms) ||
         weight.largest > kMaxSoundWeight;
}

ReplayedUpdate Summarise(const RunFacts& facts, const UpdateNumbers& numbers) {
  ReplayedUpdate update;
  for (size_t i = 0; i < std::min(numbers.weights.size(), facts.tensors.size()); ++i) {
    const WeightNumbers& weight = numbers.weights[i];
    const double ratio = UpdateRatio(weight);
    if (ratio > UpdateLimit(facts, facts.tensors[i], numbers.step)) ++update.too_large;
    if (update.largest_of.empty() || ratio > update.largest) {
      update.largest = ratio;
      update.largest_of = facts.tensors[i].name;
    }
    if (update.broken) continue;
    if (IsBroken(weight)) {
      update.broken = facts.tensors[i].name;
      update.largest_weight = weight.largest;
    } else {
      update.largest_weight = std::max(update.largest_weight, weight.largest);
    }
  }
  return update;
}

}  // namespace

void ReplayedSteps::Add(const StepNumbers& numbers) {
  ReplayedStep step{.step = numbers.step,
                    .loss = numbers.loss,
                    .grad_norm = numbers.grad_norm,
                    .lr = numbers.lr,
                    .loss_scale = numbers.loss_scale,
                    .skipped = numbers.skipped,
                    .rows = numbers.rows};
  const bool sound = numbers.forward_finite && std::isfinite(numbers.grad_norm) && !numbers.skipped;
  if (!sound) step.first = FindNonFinite(facts_, numbers);
  steps_.push_back(std::move(step));
}

void ReplayedSteps::Add(const UpdateNumbers& numbers) {
  const auto of = std::ranges::find(steps_, numbers.step, &ReplayedStep::step);
  if (of != steps_.end()) of->update = Summarise(facts_, numbers);
}

void ReplayedSteps::CutAfter(uint64_t last) {
  std::erase_if(steps_, [last](const ReplayedStep& step) { return step.step > last; });
  std::erase_if(reports_, [last](const Report& report) { return report.step > last; });
}

}  // namespace penstock::train
