#include "numerics/update_size.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "numerics/advice.h"
#include "numerics/text.h"
#include "numerics/thresholds.h"

namespace penstock::train {
namespace {

/// NaN stands for no bound.
double Ratio(double part, double whole) {
  const double ratio = part / std::max(whole, kMinWeightRms);
  return std::isnan(ratio) ? std::numeric_limits<double>::infinity() : ratio;
}

}  // namespace

double UpdateRatio(const WeightNumbers& weight) {
  return Ratio(weight.update_rms, weight.rms_before);
}

double UpdateLimit(const RunFacts& facts, const WatchedTensor& tensor, uint64_t step) {
  const bool settled = step > facts.warmup_steps + kSettledSteps;
  return tensor.matrix && settled ? kMaxSettledUpdate : kMaxUpdate;
}

void UpdateSizeDetector::Worst::Take(size_t index, double of) {
  if (count == 0 || of > ratio) {
    tensor = index;
    ratio = of;
  }
  ++count;
}

bool UpdateSizeDetector::Settled(uint64_t step) const {
  return step > facts_.warmup_steps + kSettledSteps;
}

UpdateSizeDetector::Worst UpdateSizeDetector::LargestUpdate(const UpdateNumbers& numbers) const {
  Worst worst;
  for (size_t i = 0; i < std::min(numbers.weights.size(), facts_.tensors.size()); ++i) {
    const double ratio = UpdateRatio(numbers.weights[i]);
    if (ratio > UpdateLimit(facts_, facts_.tensors[i], numbers.step)) worst.Take(i, ratio);
  }
  return worst;
}

UpdateSizeDetector::Worst UpdateSizeDetector::LargestGrowth(const UpdateNumbers& numbers) {
  Worst worst;
  if (!Settled(numbers.step)) return worst;
  std::vector<double> now;
  for (const WeightNumbers& weight : numbers.weights) now.push_back(weight.rms);
  for (size_t i = 0; i < std::min(now.size(), facts_.tensors.size()); ++i) {
    if (!facts_.tensors[i].matrix) continue;
    double least = now[i];
    for (const std::vector<double>& then : rms_) {
      if (i < then.size()) least = std::min(least, then[i]);
    }
    const double growth = Ratio(now[i], least);
    if (growth >= kGrowth) worst.Take(i, growth);
  }
  rms_.push_back(std::move(now));
  if (rms_.size() > kGrowthSteps) rms_.pop_front();
  return worst;
}

Report UpdateSizeDetector::MakeReport(uint64_t step, const Worst& worst,
                                      const std::string& what) const {
  const WatchedTensor& tensor = facts_.tensors[worst.tensor];
  return {.step = step,
          .kind = ReportKind::kUpdate,
          .tensor = tensor.name,
          .layer = tensor.layer,
          .pass = Pass::kUpdate,
          .value = worst.ratio,
          .message = fmt::format("step {}: {}{}; {}", step, what,
                                 OthersText(worst.count, facts_.tensors.size()),
                                 Advice(ReportKind::kUpdate, Pass::kUpdate, {}))};
}

std::vector<Report> UpdateSizeDetector::Updated(const UpdateNumbers& numbers) {
  std::vector<Report> reports;
  const Worst update = LargestUpdate(numbers);
  const Worst growth = LargestGrowth(numbers);
  if (update.count > 0 && large_.Say(numbers.step)) {
    reports.push_back(
        MakeReport(numbers.step, update,
                   fmt::format("the update of {} is {} times its weights (rms)",
                               facts_.tensors[update.tensor].name, NumberText(update.ratio))));
  }
  // A jump is one finding, not two.
  if (growth.count > 0 && grown_.Say(numbers.step) && update.count == 0) {
    reports.push_back(MakeReport(
        numbers.step, growth,
        fmt::format("the weights of {} have grown {}-fold (rms) within {} steps",
                    facts_.tensors[growth.tensor].name, NumberText(growth.ratio), kGrowthSteps)));
  }
  return reports;
}

void UpdateSizeDetector::Remember(uint64_t step) {
  static_cast<void>(large_.Say(step));
  static_cast<void>(grown_.Say(step));
}

}  // namespace penstock::train
