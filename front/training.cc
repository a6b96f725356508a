#include "front/training.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "front/parallel_copy.h"
#include "zero/schedule_builder.h"

namespace penstock::front {
namespace {

using offload::ModuleId;
using offload::TileId;

}  // namespace

offload::Schedule Training::PlanSchedule(const zero::StepOrder& order) const {
  zero::ModelSpec model = plan_.engine.model;
  model.step = order.uses;
  model.gradients = order.gradients;
  return zero::BuildSchedule(model, plan_.layout, plan_.slots, zero::UpdateStart::kStepEnd);
}

void Training::Abandon() noexcept {
  if (!life_.failure().ok()) return;
  life_.Fail(MakeError(ErrorCode::kUnavailable,
                       "a call of this training ended for want of memory; go on from the last "
                       "commit"));
}

Status Training::CheckReady() {
  if (copies_ != nullptr) PENSTOCK_TRY(Keep(copies_->status()));
  PENSTOCK_TRY(life_.failure());
  if (life_.filled()) return {};
  return MakeError(ErrorCode::kInvalidArgument,
                   "the weights of {} units are missing, of {} first; fill every unit before it is "
                   "used",
                   life_.unfilled(), plan_.layout.module(life_.FirstUnfilled()).name);
}

Status Training::CheckUnit(uint32_t unit) const {
  if (unit < settled_.size()) return {};
  return MakeError(ErrorCode::kInvalidArgument, "unit {} is unknown; the model has units 0 to {}",
                   unit, settled_.size() - 1);
}

Status Training::CheckTensor(uint32_t unit, uint32_t tensor) const {
  PENSTOCK_TRY(CheckUnit(unit));
  const size_t tensors = plan_.layout.module(ModuleId{unit}).tensors.size();
  if (tensor < tensors) return {};
  return MakeError(ErrorCode::kInvalidArgument, "unit {} has no tensor {}; it has tensors 0 to {}",
                   plan_.layout.module(ModuleId{unit}).name, tensor, tensors - 1);
}

/// Begins a step with the first thing that belongs to one. Precondition: CheckReady.
Status Training::BeginStep() {
  if (life_.open()) return {};
  if (const Status streaks = life_.CheckStreaks(); !streaks.ok()) {
    return MakeError(
        streaks.error().code,
        "{}; lower the learning rate or the loss scale, and resume from the last commit",
        streaks.error().message);
  }
  PENSTOCK_TRY(Keep(states().BeginStep(0, counts().optimizer_steps + 1)));
  life_.BeginStep();
  use_ = 0;
  return {};
}

/// The time of a use: that of the planned one, or of the one that is planned next.
uint64_t Training::TimeOf(ModuleId module) {
  const uint64_t next = step_start_ + std::min(use_, schedule_->length() - 1);
  if (use_ < schedule_->length() && schedule_->uses[use_].module == module) ++use_;
  return next;
}

/// Sets the clock of what is read ahead, where anything is.
void Training::SetTime(uint64_t time) {
  if (state_ != nullptr) state_->store().SetTime(time);
}

/// Counts a use.
Status Training::BeginUse(uint32_t unit, UseKind kind, bool brings) {
  PENSTOCK_TRY(CheckReady());
  PENSTOCK_TRY(CheckUnit(unit));
  if (kind == UseKind::kAside) return {};
  PENSTOCK_TRY(BeginStep());
  life_.Use(ModuleId{unit});
  const uint64_t time = TimeOf(ModuleId{unit});
  if (brings) SetTime(time);
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
  PENSTOCK_TRY(CopyWeights(ModuleId{unit}, to));
  settled_[unit] = true;
  return {};
}

/// Waits for the unit's last update; if no weights are wanted, that is all.
Status Training::CopyWeights(ModuleId module, const UnitMemory& to) {
  if (home_ != nullptr) {  // whose updates are in the order of the calls
    return to.wanted() ? Keep(home_->FetchWeights(module, to, copy_threads())) : Status();
  }
  offload::IdRange<TileId> tiles = plan_.layout.TilesOf(module);
  while (tiles.size() > 0) {
    Result<offload::PinnedWeights> pinned = state_->store().PinWeights(tiles, kMostCopied);
    PENSTOCK_TRY(Keep(pinned.status()));
    const size_t count = pinned->weights().size();
    std::vector<Copy> copies;
    for (size_t i = 0; to.wanted() && i < count; ++i) {
      to.AddCopies(plan_.layout, tiles[i], pinned->weights()[i], copies);
    }
    CopyAll(copies, copy_threads());
    tiles = tiles.Part(count, tiles.size() - count);
  }
  return {};
}

/// Sees to it that a unit's gradients may be written.
Status Training::BeginGradient(uint32_t unit, uint32_t tensor) {
  PENSTOCK_TRY(CheckReady());
  PENSTOCK_TRY(CheckTensor(unit, tensor));
  PENSTOCK_TRY(BeginStep());
  if (settled_[unit]) return {};
  PENSTOCK_TRY(
      CopyWeights(ModuleId{unit}, UnitMemory(nullptr)));  // its last update may read the last one
  settled_[unit] = true;
  return {};
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

Result<zero::GradientNorm::Value> Training::Norm() {
  PENSTOCK_TRY(CheckReady());
  if (norm_) return *norm_;
  PENSTOCK_TRY(BeginStep());
  PENSTOCK_TRY(AwaitCopies());
  PENSTOCK_TRY(inbox_->CompleteAll(copy_threads()));
  PENSTOCK_TRY(FinishCommit());  // an update would change the tiles that it reads
  Result<zero::GradientNorm::Value> norm = states().FinishGradients();
  PENSTOCK_TRY(Keep(norm.status()));
  norm_ = *norm;
  return *norm_;
}

Status Training::CheckGroups(size_t count, double max_norm, double loss_scale) const {
  const std::vector<zero::GroupSpec>& groups = plan_.engine.model.groups;
  const auto trained =
      static_cast<size_t>(std::ranges::count(groups, false, &zero::GroupSpec::frozen));
  if (count != trained) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "the step ends with the scalars of {} parameter groups, and the model has {} "
                     "that are trained; give one for each",
                     count, trained);
  }
  if (!(max_norm >= 0) || !(loss_scale > 0) || !std::isfinite(loss_scale)) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "the step ends with max_norm {} and loss_scale {}; give a max_norm of 0 or "
                     "more, and a positive loss_scale",
                     max_norm, loss_scale);
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

Status Training::Update(std::vector<zero::GroupSpec> groups, double grad_scale) {
  const double lr = groups.front().lr.value_or(0);
  states().SetGroups(std::move(groups), lr);
  return states().UpdateStep(grad_scale);
}

Result<Outcome> Training::EndStep(std::span<const GroupScalars> groups, double max_norm,
                                  double loss_scale) {
  PENSTOCK_TRY(CheckReady());
  PENSTOCK_TRY(CheckGroups(groups.size(), max_norm, loss_scale));
  PENSTOCK_ASSIGN(std::vector<zero::GroupSpec> specs, GroupsOf(groups));
  PENSTOCK_ASSIGN(const zero::GradientNorm::Value gradient, Norm());
  PENSTOCK_TRY(AwaitCopies());   // of weights that were used since: the update changes them,
  PENSTOCK_TRY(FinishCommit());  // as it does the tiles of a commit that was begun since
  zero::StepScalars scalars{.gradient_clipping = {}, .loss_scale = loss_scale};
  if (max_norm > 0) scalars.gradient_clipping = max_norm;
  PENSTOCK_ASSIGN(const zero::StepDecision decision, life_.Decide(gradient, scalars));
  PENSTOCK_TRY(
      Keep(decision.skip ? states().SkipStep() : Update(std::move(specs), decision.grad_scale)));
  const std::optional<zero::StepOrder> order = life_.EndStep(decision);
  CloseStep();
  if (order) {
    auto schedule = std::make_unique<offload::Schedule>(PlanSchedule(*order));
    states().SetOrder(*order);
    schedule_ = std::move(schedule);
    step_start_ = 0;
  } else {
    step_start_ += schedule_->length();
  }
  SetTime(step_start_);
  return Outcome{.step = counts().step,
                 .optimizer_steps = counts().optimizer_steps,
                 .grad_norm = decision.grad_norm,
                 .skipped = decision.skip};
}

void Training::CloseStep() {
  norm_.reset();
  read_.reset();
  inbox_->Clear();
  settled_.assign(settled_.size(), false);
}

/// Another step comes in its place, with a time of its own.
Status Training::DropStep() {
  PENSTOCK_TRY(CheckReady());
  if (!life_.open()) return {};
  PENSTOCK_TRY(AwaitCopies());
  if (norm_) {
    PENSTOCK_TRY(states().SkipStep());
  } else {
    PENSTOCK_TRY(Keep(states().DropStep()));
  }
  life_.DropStep();
  CloseStep();
  step_start_ += schedule_->length();
  SetTime(step_start_);
  return {};
}

}  // namespace penstock::front
