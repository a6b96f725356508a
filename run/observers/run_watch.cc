#include "run/observers/run_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "base/median.h"
#include "numerics/thresholds.h"
#include "run/row_reader.h"
#include "zero/session/step_life.h"

namespace penstock::train {
namespace {

constexpr size_t kKeptSeconds = 64;

/// The detector names the cause of the stop that the session makes.
static_assert(kForwardsToStop == zero::kMaxLossesNotFinite);

/// The row before says with which scale a step was computed.
StepNumbers NumbersOf(const NumericsRow& row, double loss_scale) {
  return {.step = row.step,
          .loss = row.loss,
          .forward_finite = std::isfinite(row.loss),
          .grad_norm = row.grad_norm,
          .loss_scale = loss_scale,
          .skipped = row.skipped};
}

}  // namespace

Result<std::unique_ptr<RunWatch>> RunWatch::Begin(const Folder& run, WatchedRun watched,
                                                  std::optional<uint64_t> resumed_after,
                                                  Notify notify, ReplayedSteps* record) {
  PENSTOCK_ASSIGN(NumericsWriter writer, resumed_after
                                             ? NumericsWriter::Resume(run, *resumed_after, notify)
                                             : NumericsWriter::Create(run));
  if (record != nullptr) record->Begin(watched.facts);
  std::unique_ptr<RunWatch> watch(
      new RunWatch(run, std::move(watched), std::move(writer), std::move(notify), record));
  if (resumed_after) {
    // It told of an end that is none any more.
    const Status removed = run.RemoveFile(kBlackBoxName);
    if (!removed.ok() && removed.error().code != ErrorCode::kNotFound) return removed.error();
    PENSTOCK_TRY(watch->Replay(*resumed_after));
  }
  return watch;
}

Status RunWatch::Replay(uint64_t step) {
  PENSTOCK_ASSIGN(const std::vector<NumericsRow> rows, ReadNumericsRows(run_));
  PENSTOCK_ASSIGN(const std::vector<Report> reports, ReadReports(run_));
  const size_t first = rows.size() - std::min<size_t>(rows.size(), watch_.RowsToReplay());
  for (size_t i = first; i < rows.size(); ++i) {
    watch_.Replay(NumbersOf(rows[i], i == 0 ? rows[i].loss_scale : rows[i - 1].loss_scale));
  }
  for (const Report& report : reports) watch_.Remember(report, step);
  watch_.Resumed();
  if (record_ != nullptr) watch_.ForgetSpikes();
  return {};
}

double RunWatch::MedianStep() const {
  return seconds_.empty() ? 0 : MedianOf({seconds_.begin(), seconds_.end()});
}

void RunWatch::Keep(const Status& written) {
  if (written.ok() || std::exchange(fails_, true)) return;
  notify_(fmt::format("{}; findings about numerics are not written", written.error().message));
}

void RunWatch::Say(const std::vector<Report>& reports) {
  for (const Report& report : reports) {
    notify_(report.message);
    Keep(writer_.Append(report));
    if (record_ != nullptr) record_->Add(report);
  }
}

void RunWatch::Updated(const std::vector<kernels::WeightFigures>& updates) {
  UpdateNumbers numbers{.step = last_applied_, .weights = {}};
  const std::vector<double> before = std::exchange(rms_, {});
  for (size_t i = 0; i < updates.size(); ++i) {
    const auto elements = static_cast<double>(elements_[i]);
    rms_.push_back(std::sqrt(updates[i].sum_of_squares / elements));
    numbers.weights.push_back(
        {.largest = updates[i].largest,
         .rms = rms_[i],
         .rms_before = before.empty() ? rms_[i] : before[i],
         .update_rms = std::sqrt(updates[i].update_sum_of_squares / elements)});
  }
  if (record_ != nullptr) record_->Add(numbers);
  Say(watch_.Updated(numbers));
}

/// Within layers nothing but underflow makes zeros, be it in backward, before the sum is rounded.
void RunWatch::AddZeros(const std::vector<kernels::ZeroCounts>& zeros,
                        std::vector<GradientNumbers>& gradients) const {
  for (size_t i = 0; i < zeros.size(); ++i) {
    const auto elements = static_cast<double>(elements_[i]);
    gradients[i].zeros = static_cast<double>(zeros[i].rounded) / elements;
    if (watch_.facts().tensors[i].layer) continue;
    gradients[i].zeros_before = static_cast<double>(zeros[i].exact) / elements;
  }
}

Status RunWatch::AfterStep(DoneStep& step) {
  StepNumbers& numbers = step.numbers;
  const zero::StepFigures& figures = step.figures;
  if (!figures.updates.empty()) Updated(figures.updates);
  if (!numbers.skipped) last_applied_ = numbers.step;
  numbers.median_step_s = MedianStep();
  for (size_t i = 0; i < figures.gradients.size(); ++i) {
    const kernels::GradientFigures& of = figures.gradients[i];
    const double mean_square = of.sum_of_squares / static_cast<double>(elements_[i]);
    numbers.gradients.push_back({.nonfinite = of.nonfinite,
                                 .largest = of.largest / numbers.loss_scale,
                                 .rms = std::sqrt(mean_square) / numbers.loss_scale});
  }
  AddZeros(figures.zeros, numbers.gradients);
  if (record_ != nullptr) record_->Add(numbers);
  Say(watch_.Step(numbers));
  if (const auto line = watch_.HeadroomLine(numbers)) Keep(writer_.AppendHeadroom(*line));
  return {};
}

Status RunWatch::AfterRow(const ClosedRow& closed) {
  seconds_.push_back(closed.row.step_s);
  if (seconds_.size() > kKeptSeconds) seconds_.pop_front();
  return {};
}

void RunWatch::CommitRefused(uint64_t step, const std::string& why) {
  const Report report = watch_.Broken(step, why);
  Keep(writer_.Append(report));
  if (record_ != nullptr) record_->Add(report);
}

void RunWatch::AtEnd(const TrainingEnd& end) {
  if (!end.failure || end.failure->code != ErrorCode::kNumeric) return;
  Keep(WriteBlackBox(run_, watch_.BlackBoxJson(end.step, end.failure->message)));
}

}  // namespace penstock::train
