#include "front/training.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace penstock::front {
namespace {

using offload::ModuleId;

}  // namespace

void Training::Abandon() noexcept {
  if (!life().failure().ok()) return;
  session_->Fail(MakeError(ErrorCode::kUnavailable,
                           "a call of this training ended for want of memory; resume from the "
                           "last commit"));
}

Status Training::CheckReady() {
  if (copies_ != nullptr) PENSTOCK_TRY(Keep(copies_->status()));
  PENSTOCK_TRY(life().failure());
  if (life().filled()) return {};
  return MakeError(ErrorCode::kInvalidArgument,
                   "the weights of {} units are missing, of {} first; fill every unit before it is "
                   "used",
                   life().unfilled(), plan_.layout.module(life().FirstUnfilled()).name);
}

Status Training::CheckUnit(uint32_t unit) const {
  const size_t units = plan_.layout.model.modules.size();
  if (unit < units) return {};
  return MakeError(ErrorCode::kInvalidArgument, "unit {} is unknown; the model has units 0 to {}",
                   unit, units - 1);
}

Status Training::CheckTensor(uint32_t unit, uint32_t tensor) const {
  PENSTOCK_TRY(CheckUnit(unit));
  const size_t tensors = plan_.layout.module(ModuleId{unit}).tensors.size();
  if (tensor < tensors) return {};
  return MakeError(ErrorCode::kInvalidArgument, "unit {} has no tensor {}; it has tensors 0 to {}",
                   plan_.layout.module(ModuleId{unit}).name, tensor, tensors - 1);
}

/// Begins a step with the first call that belongs to one. Precondition: CheckReady.
Status Training::BeginStep() {
  if (step_) return {};
  if (const Status streaks = session_->CheckSkips(); !streaks.ok()) {
    const Error ended =
        MakeError(streaks.error().code,
                  "{}; lower the learning rate or the loss scale, and resume from the last commit",
                  streaks.error().message);
    if (log_ != nullptr) log_->Failed(counts().step, ended);
    return ended;
  }
  PENSTOCK_ASSIGN(zero::Step step, session_->BeginStep());
  step_.emplace(std::move(step));
  return {};
}

/// Counts a use.
Status Training::BeginUse(uint32_t unit, UseKind kind, bool brings) {
  PENSTOCK_TRY(CheckReady());
  PENSTOCK_TRY(CheckUnit(unit));
  if (kind == UseKind::kAside) return {};
  PENSTOCK_TRY(BeginStep());
  PENSTOCK_TRY(step_->CountUse(ModuleId{unit}));
  if (host_ != nullptr) host_->Use(ModuleId{unit}, brings);
  return {};
}

Result<UnitMemory> Training::MemoryOf(uint32_t unit, void* const* tensors) const {
  PENSTOCK_TRY(CheckUnit(unit));
  const offload::ModuleLayout& of = plan_.layout.module(ModuleId{unit});
  std::vector<std::byte*> addresses;
  for (size_t i = 0; i < of.tensors.size(); ++i) {
    addresses.push_back(static_cast<std::byte*>(tensors[i]));
    if (tensors[i] != nullptr) continue;
    return MakeError(
        ErrorCode::kInvalidArgument,
        "the memory for tensor {} is NULL; give an address for each tensor of the unit",
        of.tensors[i].name);
  }
  return UnitMemory(std::move(addresses));
}

Status Training::Use(uint32_t unit, UseKind kind, const UnitMemory& to) {
  PENSTOCK_TRY(BeginUse(unit, kind, to.wanted()));
  if (!to.wanted()) return {};
  return Keep(host_ != nullptr ? host_->CopyWeights(ModuleId{unit}, to, copy_threads())
                               : home_->FetchWeights(ModuleId{unit}, to, copy_threads()));
}

/// Makes a unit's gradients writable.
Status Training::BeginGradient(uint32_t unit, uint32_t tensor) {
  PENSTOCK_TRY(CheckReady());
  PENSTOCK_TRY(CheckTensor(unit, tensor));
  PENSTOCK_TRY(BeginStep());
  // Updates on the device are in the order of the calls.
  return host_ != nullptr ? Keep(host_->Settle(ModuleId{unit})) : Status();
}

Status Training::Gradient(uint32_t unit, uint32_t tensor, const void* values, DType dtype) {
  if (home_ != nullptr && values != nullptr) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "a gradient in host memory was given, and the states are at home on the "
                     "device; give gradients that are there");
  }
  PENSTOCK_TRY(BeginGradient(unit, tensor));
  if (home_ != nullptr) return AddToHome(unit, tensor, values, dtype, nullptr);
  if (values == nullptr && copies_ != nullptr) return EnqueueZeros(ModuleId{unit}, tensor, dtype);
  PENSTOCK_TRY(AwaitGradients());  // they are added in the order of the calls
  return inbox_->Add(ModuleId{unit}, tensor, values, dtype, copy_threads());
}

/// Whether a gradient of the open step is in host memory, and what was announced has arrived.
Status Training::CheckGradient(uint32_t unit, uint32_t tensor) {
  PENSTOCK_TRY(CheckReady());
  PENSTOCK_TRY(CheckTensor(unit, tensor));
  if (home_ != nullptr) {
    return MakeError(ErrorCode::kUnavailable,
                     "gradients are at home on the device with the states, where they are not "
                     "read; keep states in host memory, or read gradients before they are given");
  }
  return AwaitGradients();
}

Status Training::ReadGradient(uint32_t unit, uint32_t tensor, float* to) {
  PENSTOCK_TRY(CheckGradient(unit, tensor));
  return inbox_->Read(ModuleId{unit}, tensor, to, copy_threads());
}

Status Training::ReplaceGradient(uint32_t unit, uint32_t tensor, const void* values, DType dtype) {
  PENSTOCK_TRY(CheckGradient(unit, tensor));
  return inbox_->Replace(ModuleId{unit}, tensor, values, dtype, copy_threads());
}

Result<zero::GradientNorm::Value> Training::Norm() {
  PENSTOCK_TRY(CheckReady());
  if (session_->gradient()) return *session_->gradient();
  PENSTOCK_TRY(BeginStep());
  PENSTOCK_TRY(AwaitCopies());
  PENSTOCK_TRY(inbox_->CompleteAll(copy_threads()));
  PENSTOCK_TRY(FinishCommit());  // an update would change the tiles that it reads
  return step_->Norm();
}

/// One loss a step: that of its micro-batches is their mean.
Status Training::ReportLoss(double loss) {
  PENSTOCK_TRY(CheckReady());
  if (session_->life().losses() == zero::LossReports::kNever) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "the loss of step {} was reported, and {}; report that of each step from the "
                     "first one on, or none",
                     counts().step + 1,
                     plan_.losses == zero::LossReports::kNever
                         ? "the engine was made with \"reports_loss\": false"
                         : "the steps before it reported none");
  }
  PENSTOCK_TRY(BeginStep());
  if (!session_->takes_loss()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "the loss of step {} was reported twice; report the mean loss of its "
                     "micro-batches once",
                     counts().step + 1);
  }
  step_->ReportLoss(loss);
  losses_.reported = loss;
  return {};
}

Status Training::CheckGroups(size_t groups) const {
  const auto trained = static_cast<size_t>(
      std::ranges::count(plan_.engine.model.groups, false, &zero::GroupSpec::frozen));
  if (groups != trained) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "the step ends with the scalars of {} parameter groups, and the model has {} "
                     "that are trained; give one for each",
                     groups, trained);
  }
  return {};
}

Status Training::CheckEnd(double max_norm, double loss_scale) {
  const bool scaled = loss_scale > 0 && std::isfinite(loss_scale);
  if (!(max_norm >= 0) || (!plan_.scales_loss && !scaled)) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "the step ends with max_norm {} and loss_scale {}; give a max_norm of 0 or "
                     "more, and a positive loss_scale",
                     max_norm, loss_scale);
  }
  if (plan_.scales_loss && loss_scale != 0 && loss_scale != this->loss_scale()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "the step ends with loss_scale {}, and the engine's is {}; scale by that, and "
                     "give it or 0",
                     loss_scale, this->loss_scale());
  }
  if (step_ && session_->requires_loss()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "step {} ends before its loss was reported; report it first, or drop the step",
                     counts().step + 1);
  }
  return {};
}

Result<std::vector<zero::GroupSpec>> Training::GroupsOf(
    std::span<const GroupScalars> groups) const {
  std::vector<zero::GroupSpec> specs = plan_.engine.model.groups;
  for (size_t i = 0; i < groups.size(); ++i) {
    PENSTOCK_ASSIGN(specs[i].hyper, WithScalars(plan_.engine.config.optimizer.hyper, groups[i]));
    specs[i].lr = groups[i].lr;
  }
  return specs;
}

Result<zero::StepOutcome> Training::EndStep(std::span<const GroupScalars> groups, double max_norm,
                                            double loss_scale) {
  PENSTOCK_TRY(CheckReady());
  PENSTOCK_TRY(CheckGroups(groups.size()));
  PENSTOCK_TRY(CheckEnd(max_norm, loss_scale));
  zero::StepEnd end;
  if (!plan_.scales_loss) end.scalars.loss_scale = loss_scale;
  if (max_norm > 0) end.scalars.gradient_clipping = max_norm;
  PENSTOCK_ASSIGN(end.groups, GroupsOf(groups));
  PENSTOCK_TRY(Norm().status());
  PENSTOCK_TRY(AwaitCopies());   // of weights that were used since: the update changes them,
  PENSTOCK_TRY(FinishCommit());  // as it does the tiles of a commit that was begun since
  Result<zero::StepOutcome> outcome = step_->Finish({}, std::move(end));
  LogStep(outcome, session_->figures(), groups.empty() ? 0 : groups.front().lr, loss_scale);
  CloseStep();
  return outcome;
}

void Training::LogStep(const Result<zero::StepOutcome>& outcome, const zero::StepFigures& figures,
                       double lr, double loss_scale) {
  if (log_ == nullptr) return;
  log_->AfterLoss(*session_, losses_.reported);
  if (!outcome.ok()) return;
  log_->AfterStep(
      *session_, *outcome, figures, losses_,
      {.lr = lr, .loss_scale = plan_.scales_loss ? life().scale_of_step() : loss_scale});
}

Result<zero::StepOutcome> Training::SkipStep(double lr, double loss_scale) {
  PENSTOCK_TRY(CheckReady());
  PENSTOCK_TRY(CheckEnd(/*max_norm=*/0, loss_scale));
  PENSTOCK_TRY(BeginStep());
  PENSTOCK_TRY(AwaitCopies());
  PENSTOCK_TRY(FinishCommit());
  Result<zero::StepOutcome> outcome = step_->Skip();
  // A step that reports no loss yet is still open.
  if (!outcome.ok() && outcome.error().code == ErrorCode::kInvalidArgument) return outcome;
  LogStep(outcome, /*figures=*/{}, lr, loss_scale);
  CloseStep();
  return outcome;
}

void Training::CloseStep() {
  step_.reset();
  losses_ = {};
  read_.reset();
  inbox_->Clear();
}

Status Training::DropStep() {
  PENSTOCK_TRY(CheckReady());
  if (!step_) return {};
  PENSTOCK_TRY(AwaitCopies());
  Status dropped = step_->Drop();
  if (log_ != nullptr) log_->AfterLoss(*session_, losses_.reported);
  CloseStep();
  return dropped;
}

}  // namespace penstock::front
