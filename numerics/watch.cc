#include "numerics/watch.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "numerics/advice.h"
#include "numerics/thresholds.h"

namespace penstock::train {
namespace {

/// Reports that are kept for FirstCause; a step has few.
constexpr size_t kRecentReports = 64;

bool AllFiniteWeights(const UpdateNumbers& numbers) {
  return std::ranges::all_of(numbers.weights, [](const WeightNumbers& weight) {
    return std::isfinite(weight.largest) && !std::isnan(weight.rms);
  });
}

bool CanBeFirstCause(const Report& report) {
  switch (report.kind) {
    case ReportKind::kNonFinite:
    case ReportKind::kHeadroom:
    case ReportKind::kLossSpike:
    case ReportKind::kNormSpike:
    case ReportKind::kUpdate:
    case ReportKind::kStreak:
      return true;
    case ReportKind::kUnderflow:
    case ReportKind::kOverflows:
      return false;
  }
  return false;
}

}  // namespace

NumericsWatch::NumericsWatch(RunFacts facts)
    : facts_(std::move(facts)),
      non_finite_(facts_),
      headroom_(facts_),
      streak_(facts_),
      loss_spike_(facts_),
      update_size_(facts_),
      underflow_(facts_),
      overflow_rate_(facts_) {}

std::optional<uint64_t> NumericsWatch::BrokenBy(uint64_t step) const {
  if (broken_by_) return broken_by_;
  if (too_large_ && *too_large_ < step && step - *too_large_ <= kBlackBoxSteps) return too_large_;
  return {};
}

std::vector<Report> NumericsWatch::Step(const StepNumbers& numbers) {
  step_ = numbers.step;
  forward_finite_ = numbers.forward_finite;
  const bool trouble = numbers.skipped || !numbers.forward_finite;
  trouble_began_ = !trouble ? 0 : trouble_began_ == 0 ? numbers.step : trouble_began_;
  box_.Add(numbers);

  std::vector<Report> reports;
  const auto add = [&reports](std::optional<Report> report) {
    if (report) reports.push_back(*std::move(report));
  };
  add(headroom_.Step(numbers));
  add(loss_spike_.Step(numbers));
  add(norm_spike_.Step(numbers));
  add(underflow_.Step(numbers));
  add(overflow_rate_.Step(numbers));
  add(streak_.Step(numbers));
  add(non_finite_.Step(numbers, BrokenBy(numbers.step)));
  Keep(reports);
  return reports;
}

std::vector<Report> NumericsWatch::Updated(const UpdateNumbers& numbers) {
  box_.Add(numbers);
  if (AllFiniteWeights(numbers)) {
    broken_by_.reset();
  } else if (!broken_by_) {
    broken_by_ = numbers.step;
  }
  std::vector<Report> reports = update_size_.Updated(numbers);
  if (!reports.empty()) too_large_ = numbers.step;
  Keep(reports);
  return reports;
}

Report NumericsWatch::Broken(uint64_t step, const std::string& line) {
  if (!broken_by_) broken_by_ = step;
  Report report{.step = step,
                .kind = ReportKind::kUpdate,
                .severity = Severity::kStop,
                .pass = Pass::kUpdate,
                .message = line};
  Keep({report});
  return report;
}

void NumericsWatch::Replay(const StepNumbers& row) { static_cast<void>(Step(row)); }

void NumericsWatch::Remember(const Report& report, uint64_t resumed) {
  if (report.kind == ReportKind::kStreak) {
    streak_.Remember(report.step);
    non_finite_.RememberStreak(report.step);
  }
  if (report.kind == ReportKind::kHeadroom) headroom_.Remember(resumed);
  if (report.kind == ReportKind::kUpdate) update_size_.Remember(resumed);
  if (report.kind == ReportKind::kUnderflow) underflow_.Remember(resumed);
}

void NumericsWatch::ForgetSpikes() {
  loss_spike_.Forget();
  norm_spike_.Forget();
}

uint64_t NumericsWatch::RowsToReplay() const {
  return std::max<uint64_t>(kSpikeWindow + kQuietSteps,
                            facts_.dynamic_loss_scale ? 2 * facts_.loss_scale_window : 0);
}

void NumericsWatch::Keep(const std::vector<Report>& reports) {
  recent_.insert(recent_.end(), reports.begin(), reports.end());
  while (recent_.size() > kRecentReports) recent_.pop_front();
}

std::optional<Report> NumericsWatch::FirstCause() const {
  const uint64_t began = trouble_began_ == 0 ? step_ : trouble_began_;
  const Report* first = nullptr;
  for (const Report& report : recent_) {
    const bool near = report.step + kBlackBoxSteps >= began;
    if (!near || !CanBeFirstCause(report)) continue;
    if (first == nullptr || report.step < first->step) first = &report;
  }
  return first == nullptr ? std::nullopt : std::optional(*first);
}

std::string NumericsWatch::BlackBoxJson(uint64_t step, const std::string& line) const {
  const std::optional<Report> cause = FirstCause();
  const Situation situation{.dtype = facts_.dtype,
                            .dynamic_loss_scale = facts_.dynamic_loss_scale,
                            .broken_by = BrokenBy(step),
                            .ended = true};
  const ReportKind kind = cause ? cause->kind : ReportKind::kNonFinite;
  const std::optional<Pass> pass = cause             ? cause->pass
                                   : forward_finite_ ? Pass::kBackward
                                                     : Pass::kForward;
  return box_.ToJson(
      facts_,
      {.step = step, .line = line, .first_cause = cause, .advice = Advice(kind, pass, situation)});
}

}  // namespace penstock::train
