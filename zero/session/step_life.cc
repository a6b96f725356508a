#include "zero/session/step_life.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"

namespace penstock::zero {

LifeRules LifeRules::Of(const config::Config& config, LossReports losses) {
  return {.step = {config.gradient_clipping, config.check_grad_overflow},
          .loss_scaling = config.loss_scaling,
          .losses = losses,
          .two_slots = config.durable};
}

StepLife::StepLife(const ModelSpec& model, LifeRules rules, const offload::CommitHead& head)
    : rules_(std::move(rules)),
      counts_(head),
      order_(model),
      filled_(model.modules.size(), false),
      // A training of a model without modules is also empty at first.
      unfilled_(std::max<size_t>(filled_.size(), 1)) {
  if (!rules_.loss_scaling) return;
  loss_scale_.emplace(*rules_.loss_scaling);
  counts_.loss_scale = loss_scale_->state();
}

void StepLife::Fill(ModuleId module) {
  PENSTOCK_CHECK(!filled(module), "a module was filled twice");
  filled_[offload::Index(module)] = true;
  --unfilled_;
}

void StepLife::FillAll() {
  for (const ModuleId module : offload::Ids<ModuleId>(filled_.size())) Fill(module);
  unfilled_ = 0;
}

void StepLife::FillFrom(const offload::CommitHead& head) {
  FillAll();
  from_commit_ = true;
  counts_ = head;
  if (!rules_.resumes_streaks) counts_.skipped_in_a_row = 0;
  counts_.loss_scale.reset();
  if (!rules_.loss_scaling) return;
  if (head.loss_scale) loss_scale_.emplace(*rules_.loss_scaling, *head.loss_scale);
  counts_.loss_scale = loss_scale_->state();
}

void StepLife::Adopt(const offload::CommitHead& head) {
  FillFrom(head);
  commits_.Adopt(head.step);
}

ModuleId StepLife::FirstUnfilled() const {
  PENSTOCK_CHECK(!filled());
  const auto first = std::ranges::find(filled_, false);
  return ModuleId{static_cast<uint32_t>(first - filled_.begin())};
}

Status StepLife::CheckFilled() const {
  if (filled()) return {};
  return MakeError(ErrorCode::kInvalidArgument,
                   "the state is empty; call Initialize, Fill or Adopt first");
}

Status StepLife::BeginAt(uint64_t step, uint64_t optimizer_steps) {
  if (from_commit_ || counts_.step != 0 || open_) {
    return MakeError(
        ErrorCode::kInvalidArgument,
        "the training has steps of its own already; say before its first step, and not "
        "of a commit that is continued, how many were made elsewhere");
  }
  if (step > offload::kMaxSteps / 2) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "{} steps are said to have been made elsewhere; at most {} can be", step,
                     offload::kMaxSteps / 2);
  }
  if (optimizer_steps > step) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "{} of {} steps are said not to have been skipped; give at most as many",
                     optimizer_steps, step);
  }
  counts_.step = step;
  counts_.optimizer_steps = optimizer_steps;
  return {};
}

Status StepLife::PassOver(uint64_t last) {
  PENSTOCK_TRY(CheckFilled());
  if (open_ || last <= counts_.step) {
    return MakeError(
        ErrorCode::kInvalidArgument,
        "steps up to {} were passed over {} step {}; pass over steps before they begin", last,
        open_ ? "within" : "after", counts_.step + (open_ ? 1 : 0));
  }
  counts_.step = last;
  repeatable_ = false;
  return {};
}

Status StepLife::CheckBetweenSteps() const {
  PENSTOCK_TRY(failure_);
  PENSTOCK_TRY(CheckFilled());
  if (!open_) return {};
  return MakeError(ErrorCode::kInvalidArgument,
                   "step {} was begun while step {} is open; finish or drop that one first",
                   counts_.step + 2, counts_.step + 1);
}

Status StepLife::CheckBegin() const {
  PENSTOCK_TRY(CheckBetweenSteps());
  return CheckStreaks();
}

void StepLife::BeginStep() {
  OpenStep(/*repeated=*/false);
  scale_of_step_ = next_scale();
}

Status StepLife::CheckRepeat() const {
  PENSTOCK_TRY(CheckBetweenSteps());
  if (repeatable_) return {};
  return MakeError(ErrorCode::kInvalidArgument,
                   "step {} cannot be repeated: only a step that was skipped can, once, before "
                   "another begins",
                   counts_.step);
}

void StepLife::RepeatStep() { OpenStep(/*repeated=*/true); }

void StepLife::OpenStep(bool repeated) {
  PENSTOCK_CHECK(!open_ && filled());
  ++steps_begun_;
  open_ = true;
  repeated_ = repeated;
  repeatable_ = false;
  forward_is_finite_.reset();
  order_.BeginStep();
}

void StepLife::ForwardDone(bool finite) {
  PENSTOCK_CHECK(open_ && rules_.losses != LossReports::kNever);
  forward_is_finite_ = finite;
  commits_.ForwardDone(finite);
}

Result<StepDecision> StepLife::Decide(const GradientNorm::Value& gradient,
                                      const StepScalars& of_step) const {
  StepRules rules = rules_.step;
  if (of_step.gradient_clipping) rules.gradient_clipping = *of_step.gradient_clipping;
  return DecideStep(rules, gradient, of_step.loss_scale.value_or(scale_of_step_),
                    forward_is_finite_.value_or(true));
}

Status StepLife::CheckEnd() const {
  if (repeated_) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "step {} was repeated, and was finished again; drop it", counts_.step);
  }
  if (!commits_.pending()) return {};
  return MakeError(ErrorCode::kInvalidArgument,
                   "step {} was finished while a commit is being made, whose tiles its update "
                   "would change; finish the commit first",
                   counts_.step + 1);
}

std::optional<StepOrder> StepLife::EndStep(const StepDecision& decision) {
  CountStep(decision.skip, decision.grad_norm);
  return order_.EndStep();
}

void StepLife::SkipStep() { CountStep(/*skipped=*/true, std::numeric_limits<double>::infinity()); }

void StepLife::CountStep(bool skipped, double grad_norm) {
  PENSTOCK_CHECK(open_ && !repeated_ && !commits_.pending());
  PENSTOCK_CHECK(forward_is_finite_ || rules_.losses != LossReports::kEachStep);
  rules_.losses = forward_is_finite_ ? LossReports::kEachStep : LossReports::kNever;
  const bool forward_is_finite = forward_is_finite_.value_or(true);
  open_ = false;
  repeatable_ = skipped;
  // Weights that were updated have proved nothing yet.
  proven_ = skipped && (proven_ || forward_is_finite);
  from_commit_ = skipped && from_commit_;
  counts_.step += 1;
  counts_.optimizer_steps += skipped ? 0 : 1;
  CountStreaks(skipped, forward_is_finite, grad_norm);
}

void StepLife::CountStreaks(bool skipped, bool forward_is_finite, double grad_norm) {
  counts_.skipped_in_a_row = skipped ? counts_.skipped_in_a_row + 1 : 0;
  losses_not_finite_ = forward_is_finite ? 0 : losses_not_finite_ + 1;
  if (!loss_scale_) return;
  const double scale = loss_scale_->value();
  loss_scale_->Count(skipped);
  const bool is_zero = !skipped && grad_norm == 0 && loss_scale_->value() == scale;
  zero_gradients_ = is_zero ? zero_gradients_ + 1 : 0;
  counts_.loss_scale = loss_scale_->state();
}

void StepLife::DropStep() {
  PENSTOCK_CHECK(open_);
  open_ = false;
}

Status StepLife::CheckStreaks() const {
  const StreakLimits& limits = rules_.limits;
  if (losses_not_finite_ >= limits.losses_not_finite) {
    return MakeError(
        ErrorCode::kNumeric, "step {}: the losses of {} steps in a row are not finite: {}",
        counts_.step, losses_not_finite_,
        loss_scale_ ? "the forward overflows fp16, or the weights are destroyed, which "
                      "no loss scale fixes; train in bf16 or in fp32"
                    : "the forward overflows, or the weights are destroyed, which "
                      "skipping steps does not fix");
  }
  if (loss_scale_ && loss_scale_->exhausted()) {
    return MakeError(ErrorCode::kNumeric,
                     "step {}: the gradient overflows fp16, and the loss scale is at its minimum "
                     "of {} already (fp16.min_loss_scale); {} steps in a row were skipped",
                     counts_.step, loss_scale_->value(), counts_.skipped_in_a_row);
  }
  if (zero_gradients_ >= limits.zero_gradients) {
    return MakeError(ErrorCode::kNumeric,
                     "step {}: the whole gradient of {} steps in a row is zero in fp16 at loss "
                     "scale {}: it underflows, and nothing is learned",
                     counts_.step, zero_gradients_, loss_scale_->value());
  }
  if (counts_.skipped_in_a_row < limits.skipped) return {};
  return MakeError(
      ErrorCode::kNumeric,
      "step {}: {} steps in a row had losses or gradients that are not finite and were "
      "skipped",
      counts_.step, counts_.skipped_in_a_row);
}

uint64_t StepLife::SkipsToTheEnd() const {
  if (!CheckStreaks().ok()) return 0;
  uint64_t skips = rules_.limits.skipped - counts_.skipped_in_a_row;
  if (losses_not_finite_ > 0) {
    skips = std::min(skips, rules_.limits.losses_not_finite - losses_not_finite_);
  }
  if (loss_scale_) skips = std::min(skips, loss_scale_->OverflowsToTheEnd());
  return skips;
}

Status StepLife::CheckCommit() const {
  PENSTOCK_TRY(failure_);
  PENSTOCK_TRY(CheckFilled());
  const bool within = open_ && !rules_.commits_within_steps;
  if (within || commits_.pending()) {
    return MakeError(ErrorCode::kInvalidArgument, "a commit was begun {}; finish that first",
                     within ? "within a step" : "while another one is being made");
  }
  if (commits_.doubtful()) {
    return MakeError(
        ErrorCode::kNumeric,
        "no loss after the commit of step {} was finite, and another commit would take "
        "the place of the last one that is good; compute a step whose loss is finite "
        "first, or resume from that commit",
        *commits_.newest());
  }
  if (commits_.unproven()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "no loss was computed since the commit of step {}, and another commit would "
                     "take the place of the one before; compute a step first",
                     *commits_.newest());
  }
  return {};
}

offload::CommitHead StepLife::BeginCommit() {
  commits_.Begin(counts_.step, rules_.losses != LossReports::kEachStep || proven_ || from_commit_);
  return counts_;
}

void StepLife::EndCommit(const Status& made) {
  if (made.ok()) {
    commits_.MadeDurable();
  } else {
    commits_.Failed();
    Fail(made);
  }
}

std::optional<uint64_t> StepLife::Doubted(bool last_is_finite) const {
  // A commit of an earlier process is never retracted, even if it is in doubt.
  const bool doubted = commits_.doubtful() || (untried() && !last_is_finite);
  return rules_.two_slots && doubted ? commits_.newest() : std::nullopt;
}

void StepLife::DropCommit() { commits_.Dropped(); }

Status StepLife::CheckRetract() const {
  if (!open_) return {};
  return MakeError(ErrorCode::kInvalidArgument,
                   "a commit was taken back within a step; finish or drop the step first");
}

void StepLife::Retract(bool before_stands) {
  PENSTOCK_CHECK(retractable() && !open_ && !commits_.pending());
  const uint64_t step = *commits_.newest();
  commits_.Retract(before_stands);
  Fail(MakeError(ErrorCode::kNumeric,
                 "the commit of step {} was taken back, as no loss after it was finite; begin from "
                 "the commit before it",
                 step));
}

void StepLife::Fail(Status status) {
  if (failure_.ok()) failure_ = std::move(status);
}

Status StepLife::Keep(Status status) {
  if (!status.ok() && status.error().code != ErrorCode::kInvalidArgument) Fail(status);
  return status;
}

}  // namespace penstock::zero
