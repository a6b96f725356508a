#include "zero/session.h"

#include <chrono>
#include <cmath>

#include "zero/lr_schedule.h"
#include "zero/step_decision.h"

namespace penstock::zero {

using offload::Index;

Result<std::unique_ptr<Session>> Session::Create(EngineOptions options, bool reports_loss,
                                                 device::Device& device,
                                                 kernels::StateOperators& operators) {
  PENSTOCK_ASSIGN(options.model, WithOrder(std::move(options.model)));
  PENSTOCK_ASSIGN(std::unique_ptr<Engine> engine,
                  Engine::Create(std::move(options), device, operators));
  auto session = std::make_unique<Session>(*engine, reports_loss);
  session->owned_ = std::move(engine);
  return session;
}

Session::Session(Engine& engine, bool reports_loss)
    : engine_(engine),
      config_(engine.options().config),
      reports_loss_(reports_loss),
      doing_(engine.options().doing),
      order_(engine.options().model),
      state_{{.seed = engine.options().seed,
              .compute_threads = static_cast<uint32_t>(config_.compute_threads)},
             {}},
      modules_(engine.layout().model.modules.size()) {
  if (config_.loss_scaling) {
    loss_scale_.emplace(*config_.loss_scaling);
    state_.loss_scale = loss_scale_->state();
  }
  if (!doing_) return;
  for (const offload::ModuleLayout& module : layout().model.modules) {
    deeds_.push_back({.waits = "waits for weights of " + module.name,
                      .computes = "computes with " + module.name});
  }
}

Session::~Session() {
  if (open_) static_cast<void>(Drop(steps_begun_));
  static_cast<void>(FinishCommit());
  owned_.reset();  // its streams may still report a loss
}

Status Session::CheckEmpty() const {
  PENSTOCK_TRY(failure_);
  if (!filled_) return {};
  return MakeError(ErrorCode::kInvalidArgument,
                   "the state was filled twice; fill it once, before the first step");
}

Status Session::CheckFilled() const {
  if (filled_) return {};
  return MakeError(ErrorCode::kInvalidArgument,
                   "the state is empty; call Initialize, Fill or Adopt first");
}

/// Nothing is computed with a state of which a part is missing.
Status Session::Filled(Status status) {
  if (!status.ok()) failure_ = status;
  return status;
}

Status Session::Initialize(const TensorSource& source) {
  PENSTOCK_TRY(CheckEmpty());
  filled_ = true;
  const auto accumulator = static_cast<float>(config_.optimizer.initial_accumulator_value);
  return Filled(engine_.FillTiles(FillFromTensors(layout(), source, accumulator)));
}

Status Session::Fill(const TileFill& fill, const TrainState& state) {
  PENSTOCK_TRY(CheckEmpty());
  filled_ = true;
  PENSTOCK_TRY(Filled(engine_.FillTiles(fill)));
  TakeCounts(state);
  return {};
}

/// Goes on from what a commit keeps.
void Session::TakeCounts(const TrainState& state) {
  adopted_ = true;
  state_ = state;
  state_.run_json.clear();
  if (!config_.loss_scaling) return;
  if (state.loss_scale) loss_scale_.emplace(*config_.loss_scaling, *state.loss_scale);
  state_.loss_scale = loss_scale_->state();
}

Result<TrainState> Session::Adopt() {
  PENSTOCK_TRY(CheckEmpty());
  filled_ = true;
  Result<TrainState> adopted = engine_.Adopt();
  PENSTOCK_TRY(Filled(adopted.status()));
  const TrainState state = std::move(adopted).value();
  life_.Adopt(state.step);
  TakeCounts(state);
  return state;
}

Status Session::CheckMicroBatches(uint64_t micro_batches) const {
  const uint64_t most = config_.gradient_accumulation_steps;
  if (micro_batches >= 1 && micro_batches <= most) return {};
  return MakeError(ErrorCode::kInvalidArgument,
                   "step {} was begun with {} micro-batches, and gradient_accumulation_steps, for "
                   "which memory is planned, is {}; begin it with 1 to {}",
                   state_.step + 1, micro_batches, most, most);
}

Status Session::CheckCanBegin() const {
  PENSTOCK_TRY(failure_);
  PENSTOCK_TRY(CheckFilled());
  if (!open_) return {};
  return MakeError(ErrorCode::kInvalidArgument,
                   "step {} was begun while step {} is open; finish or drop that one first",
                   state_.step + 2, state_.step + 1);
}

Result<Step> Session::BeginStep(std::optional<uint64_t> micro_batches) {
  PENSTOCK_TRY(CheckCanBegin());
  PENSTOCK_TRY(CheckSkips());
  const uint64_t of_step = micro_batches.value_or(config_.gradient_accumulation_steps);
  PENSTOCK_TRY(CheckMicroBatches(of_step));
  scale_of_step_ = NextLossScale();
  micro_batches_ = of_step;
  repeated_ = false;
  PENSTOCK_ASSIGN(Step step, Open(state_.step + 1));
  if (!reports_loss_) engine_.AllowUpdates();
  MutexLock lock(mutex_);
  reporting_ = steps_begun_;
  loss_.reset();
  return step;
}

Result<Step> Session::RepeatStep() {
  PENSTOCK_TRY(CheckCanBegin());
  if (!std::exchange(repeatable_, false)) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "step {} cannot be repeated: only a step that was skipped can, once, before "
                     "another begins",
                     state_.step);
  }
  repeated_ = true;
  return Open(state_.step);
}

/// Its loss counts once reporting_ says so.
Result<Step> Session::Open(uint64_t number) {
  const uint64_t t = state_.optimizer_steps + 1;
  PENSTOCK_TRY(CheckBetas(config_.scheduler, t));
  lr_ = LearningRate(config_.scheduler, config_.optimizer.lr, t);
  engine_.NumberStep(number);
  PENSTOCK_TRY(engine_.BeginStep(lr_, t));
  open_ = true;
  repeatable_ = false;
  ++steps_begun_;
  order_.BeginStep();
  return Step(*this, steps_begun_);
}

Status Session::CheckOpen(uint64_t step) const {
  if (open_ && step == steps_begun_) return {};
  return MakeError(ErrorCode::kInvalidArgument,
                   "a step was used after its end; begin another with Session::BeginStep");
}

Status Session::CheckModule(uint64_t step, ModuleId module) const {
  PENSTOCK_TRY(CheckOpen(step));
  if (Index(module) < modules_.size()) return {};
  return MakeError(ErrorCode::kInvalidArgument,
                   "module {} is unknown; the model has the modules 0 to {}, as ModelSpec::modules "
                   "lists them",
                   Index(module), modules_.size() - 1);
}

Status Session::CheckGradient(uint64_t step, ModuleId module) const {
  PENSTOCK_TRY(CheckModule(step, module));
  if (layout().model.TrainedElements(module) == 0) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "module {} is frozen and has no gradient; leave its gradient out",
                     NameOf(module));
  }
  if (modules_[Index(module)].reduced) {
    return MakeError(
        ErrorCode::kInvalidArgument,
        "the gradient of module {} is complete already; add up everything before it is "
        "reduced",
        NameOf(module));
  }
  return {};
}

Result<Use> Session::Acquire(uint64_t step, ModuleId module) {
  PENSTOCK_TRY(CheckModule(step, module));
  if (Of(module).reduced) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "module {} was acquired after its gradient was reduced, when its update may "
                     "have begun; use its weights before that",
                     NameOf(module));
  }
  if (doing_) doing_(deeds_[Index(module)].waits);
  const Result<const std::byte*> weights = engine_.Acquire(module);
  if (!weights.ok()) {
    // All but a caller's mistake is for good: of the drive, of a commit beside the step.
    if (weights.error().code != ErrorCode::kInvalidArgument) failure_ = weights.error();
    return weights.error();
  }
  if (doing_) doing_(deeds_[Index(module)].computes);
  order_.Used(module);
  Of(module).used = true;
  ++Of(module).held;
  return Use(*this, step, module, *weights);
}

Status Session::CheckUsed(uint64_t step, ModuleId module) const {
  PENSTOCK_TRY(CheckGradient(step, module));
  if (modules_[Index(module)].used) return {};
  return MakeError(ErrorCode::kInvalidArgument,
                   "the gradient of module {} was given before its weights were used in this step, "
                   "while its last update may still read the last one; acquire the module first",
                   NameOf(module));
}

/// A lease that outlives its step was released by the step's end.
void Session::Release(uint64_t step, ModuleId module) {
  if (!open_ || step != steps_begun_) return;
  --Of(module).held;
  engine_.Release(module);
}

void Session::Reduced(ModuleId module) {
  Of(module).reduced = true;
  order_.Reduced(module);
}

void Session::ReportLoss(uint64_t step, double loss) {
  MutexLock lock(mutex_);
  if (!reports_loss_ || reporting_ != step || loss_) return;
  loss_ = ReportedLoss{.value = loss, .at = std::chrono::steady_clock::now()};
  // With the mutex held: the step cannot end before, and what follows it is another step's.
  if (std::isfinite(loss)) engine_.AllowUpdates();
}

Status Session::CheckComplete() const {
  if (life_.pending()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "step {} was finished while a commit is being made, whose tiles its update "
                     "would change; finish the commit first",
                     state_.step + 1);
  }
  for (const ModuleId module : offload::Ids<ModuleId>(modules_.size())) {
    const Module& done = modules_[Index(module)];
    if (done.held > 0) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "step {} was finished while module {} is in use; release its lease first",
                       state_.step + 1, NameOf(module));
    }
    if (!done.reduced && layout().model.TrainedElements(module) > 0) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "step {} was finished without the gradient of module {}; reduce the "
                       "gradient of every module that is not frozen, or drop the step",
                       state_.step + 1, NameOf(module));
    }
  }
  return {};
}

Result<StepOutcome> Session::Finish(uint64_t step, const StepNote& note) {
  PENSTOCK_TRY(CheckOpen(step));
  if (repeated_) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "step {} was repeated, and was finished again; drop it", state_.step);
  }
  PENSTOCK_TRY(CheckComplete());
  Result<StepOutcome> outcome = FinishOpen(note);
  // A step without a loss is over and changed nothing.
  if (!outcome.ok() && outcome.error().code != ErrorCode::kInvalidArgument) {
    failure_ = outcome.error();
  }
  EndStep();
  return outcome;
}

/// No loss of the step counts from here on.
std::optional<Session::ReportedLoss> Session::TakeLoss() {
  std::optional<ReportedLoss> loss;
  {
    MutexLock lock(mutex_);
    reporting_ = 0;
    loss = std::exchange(loss_, std::nullopt);
  }
  if (loss || !reports_loss_) life_.ForwardDone(!loss || std::isfinite(loss->value));
  return loss;
}

/// The device has done all work when the gradients are there: a loss that the stream reports is in.
Result<StepOutcome> Session::FinishOpen(const StepNote& note) {
  const bool alone = layout().world_size == 1;
  if (!alone) engine_.SetNote(note);
  Doing("waits for the gradients of the step");
  const Result<GradientNorm::Value> gradient = engine_.FinishGradients();
  const auto gradients_at = std::chrono::steady_clock::now();
  const std::optional<ReportedLoss> loss = TakeLoss();
  PENSTOCK_TRY(gradient.status());
  if (reports_loss_ && !loss) {
    PENSTOCK_TRY(engine_.SkipStep());
    return MakeError(
        ErrorCode::kInvalidArgument, "step {} was finished before its loss was reported; {}",
        state_.step + 1,
        layout().world_size == 1
            ? "report it from the compute stream, or before the step is finished"
            : "with several ranks, report the losses of the micro-batches by Step::ReportLosses");
  }
  const bool forward_is_finite = !loss || std::isfinite(loss->value);
  const Result<StepDecision> decision =
      DecideStep({config_.gradient_clipping, config_.check_grad_overflow}, *gradient,
                 scale_of_step_, forward_is_finite);
  const bool skip = !decision.ok() || decision->skip;
  PENSTOCK_TRY(skip ? engine_.SkipStep() : engine_.UpdateStep(decision->grad_scale));
  PENSTOCK_TRY(decision.status());
  Count(skip, forward_is_finite, decision->grad_norm);
  if (const std::optional<StepOrder> order = order_.EndStep()) engine_.SetOrder(*order);
  const std::span<const StepNote> notes = alone ? std::span(&note, 1) : engine_.notes();
  return StepOutcome{.step = state_.step,
                     .lr = lr_,
                     .grad_norm = decision->grad_norm,
                     .loss_scale = NextLossScale(),
                     .skipped = skip,
                     .notes = {notes.begin(), notes.end()},
                     .loss_at = loss ? loss->at : gradients_at,
                     .gradients_at = gradients_at};
}

void Session::Count(bool skipped, bool forward_is_finite, double grad_norm) {
  // Weights that were updated have proved nothing yet.
  proven_ = skipped && (proven_ || forward_is_finite);
  adopted_ = skipped && adopted_;
  state_.step += 1;
  state_.optimizer_steps += skipped ? 0 : 1;
  state_.skipped_in_a_row = skipped ? state_.skipped_in_a_row + 1 : 0;
  repeatable_ = skipped;
  losses_not_finite_ = forward_is_finite ? 0 : losses_not_finite_ + 1;
  if (!loss_scale_) return;
  const double scale = loss_scale_->value();
  loss_scale_->Count(skipped);
  const bool is_zero = !skipped && grad_norm == 0 && loss_scale_->value() == scale;
  zero_gradients_ = is_zero ? zero_gradients_ + 1 : 0;
  state_.loss_scale = loss_scale_->state();
}

Status Session::Drop(uint64_t step) {
  PENSTOCK_TRY(CheckOpen(step));
  for (const ModuleId module : offload::Ids<ModuleId>(modules_.size())) {
    for (; Of(module).held > 0; --Of(module).held) engine_.Release(module);
  }
  static_cast<void>(TakeLoss());
  Status dropped = engine_.DropStep();
  if (!dropped.ok()) failure_ = dropped;
  EndStep();
  return dropped;
}

void Session::EndStep() {
  open_ = false;
  for (Module& module : modules_) module = {};
}

}  // namespace penstock::zero
