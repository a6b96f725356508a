#include "zero/session/session.h"

#include <chrono>
#include <cmath>
#include <limits>
#include <utility>

#include "zero/lr_schedule.h"

namespace penstock::zero {

using offload::Index;

Result<std::unique_ptr<Session>> Session::Create(EngineOptions options, LossReports losses,
                                                 device::Device& device,
                                                 kernels::StateOperators& operators) {
  PENSTOCK_ASSIGN(options.model, WithOrder(std::move(options.model)));
  PENSTOCK_ASSIGN(std::unique_ptr<Engine> engine,
                  Engine::Create(std::move(options), device, operators));
  auto session = std::make_unique<Session>(*engine, losses);
  session->owned_ = std::move(engine);
  return session;
}

Session::Session(Engine& engine, LossReports losses)
    : Session(engine, &engine, LifeRules::Of(engine.options().config, losses)) {}

/// Of the threads of a caller that computes by itself nothing is known.
Session::Session(StatePort& states, DevicePort* device, const LifeRules& rules)
    : states_(states),
      device_(device),
      config_(states.options().config),
      doing_(states.options().doing),
      life_(states.options().model, rules,
            {.seed = states.options().seed,
             .compute_threads =
                 device == nullptr ? 0U : static_cast<uint32_t>(config_.compute_threads)}),
      modules_(states.layout().model.modules.size()) {
  if (!doing_) return;
  for (const offload::ModuleLayout& module : layout().model.modules) {
    deeds_.push_back({.waits = "waits for weights of " + module.name,
                      .computes = "computes with " + module.name});
  }
}

Session::~Session() {
  if (life_.open()) static_cast<void>(Drop(life_.steps_begun()));
  static_cast<void>(FinishCommit());
  owned_.reset();  // its streams may still report a loss
}

Status Session::CheckEmpty() const {
  PENSTOCK_TRY(life_.failure());
  if (!life_.filled()) return {};
  return MakeError(ErrorCode::kInvalidArgument,
                   "the state was filled twice; fill it once, before the first step");
}

/// Nothing is computed with a state of which a part is missing.
Status Session::Filled(Status status) {
  life_.Fail(status);
  return status;
}

Status Session::Initialize(const TensorSource& source) {
  PENSTOCK_TRY(CheckEmpty());
  const auto accumulator = static_cast<float>(config_.optimizer.initial_accumulator_value);
  PENSTOCK_TRY(Filled(states_.FillTiles(FillFromTensors(layout(), source, accumulator))));
  life_.FillAll();
  return {};
}

Status Session::Fill(const TileFill& fill, const TrainState& state) {
  PENSTOCK_TRY(CheckEmpty());
  PENSTOCK_TRY(Filled(states_.FillTiles(fill)));
  life_.FillFrom(state);
  return {};
}

Status Session::CheckUnfilled(ModuleId module) const {
  PENSTOCK_TRY(life_.failure());
  if (!life_.filled(module)) return {};
  return MakeError(ErrorCode::kInvalidArgument,
                   "unit {} was filled already; fill each unit once, and none of a training that "
                   "continues a commit",
                   NameOf(module));
}

Status Session::FillModule(ModuleId module, const TileFill& fill) {
  PENSTOCK_TRY(CheckUnfilled(module));
  for (const offload::TileId tile : layout().TilesOf(module)) {
    PENSTOCK_TRY(Filled(states_.FillTile(tile, fill)));
  }
  life_.Fill(module);
  return life_.filled() ? Filled(states_.EndFill()) : Status();
}

Status Session::BeginAt(uint64_t step, uint64_t optimizer_steps) {
  PENSTOCK_TRY(life_.failure());
  return life_.BeginAt(step, optimizer_steps);
}

Result<TrainState> Session::Adopt() {
  PENSTOCK_TRY(CheckEmpty());
  Result<TrainState> adopted = states_.Adopt();
  PENSTOCK_TRY(Filled(adopted.status()));
  life_.Adopt(*adopted);
  return adopted;
}

Status Session::CheckMicroBatches(uint64_t micro_batches) const {
  const uint64_t most = config_.gradient_accumulation_steps;
  if (micro_batches >= 1 && micro_batches <= most) return {};
  return MakeError(ErrorCode::kInvalidArgument,
                   "step {} was begun with {} micro-batches, and gradient_accumulation_steps, for "
                   "which memory is planned, is {}; begin it with 1 to {}",
                   state().step + 1, micro_batches, most, most);
}

Result<Step> Session::BeginStep(std::optional<uint64_t> micro_batches) {
  PENSTOCK_TRY(life_.CheckBegin());
  const uint64_t of_step = micro_batches.value_or(config_.gradient_accumulation_steps);
  PENSTOCK_TRY(CheckMicroBatches(of_step));
  PENSTOCK_TRY(BeginStates(state().step + 1));
  life_.BeginStep();
  micro_batches_ = of_step;
  const bool reports = life_.losses() != LossReports::kNever;
  if (!reports) states_.AllowUpdates();
  MutexLock lock(mutex_);
  reporting_ = reports ? life_.steps_begun() : 0;
  loss_.reset();
  return Opened();
}

/// No loss of it counts: reporting_ says so.
Result<Step> Session::RepeatStep() {
  PENSTOCK_TRY(life_.CheckRepeat());
  PENSTOCK_TRY(BeginStates(state().step));
  life_.RepeatStep();
  return Opened();
}

Status Session::BeginStates(uint64_t number) {
  const uint64_t t = state().optimizer_steps + 1;
  PENSTOCK_TRY(CheckBetas(config_.scheduler, t));
  lr_ = LearningRate(config_.scheduler, config_.optimizer.lr, t);
  states_.NumberStep(number);
  return life_.Keep(states_.BeginStep(lr_, t));
}

Status Session::CheckOpen(uint64_t step) const {
  if (life_.open() && step == life_.steps_begun()) return {};
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
  const Result<const std::byte*> weights = device().Acquire(module);
  PENSTOCK_TRY(life_.Keep(weights.status()));  // of the drive, of a commit beside the step
  if (doing_) doing_(deeds_[Index(module)].computes);
  life_.Use(module);
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
  if (!CheckOpen(step).ok()) return;
  --Of(module).held;
  device().Release(module);
}

void Session::Reduced(ModuleId module) {
  Of(module).reduced = true;
  life_.Reduce(module);
}

void Session::ReportLoss(uint64_t step, double loss) {
  MutexLock lock(mutex_);
  if (reporting_ != step || loss_) return;
  loss_ = ReportedLoss{.value = loss, .at = std::chrono::steady_clock::now()};
  // With the mutex held: the step cannot end before, and what follows it is another step's.
  if (std::isfinite(loss)) states_.AllowUpdates();
}

Status Session::CheckComplete() const {
  PENSTOCK_TRY(life_.CheckEnd());
  for (const ModuleId module : offload::Ids<ModuleId>(modules_.size())) {
    const Module& done = modules_[Index(module)];
    if (done.held > 0) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "step {} was finished while module {} is in use; release its lease first",
                       state().step + 1, NameOf(module));
    }
    if (!done.reduced && layout().model.TrainedElements(module) > 0) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "step {} was finished without the gradient of module {}; reduce the "
                       "gradient of every module that is not frozen, or drop the step",
                       state().step + 1, NameOf(module));
    }
  }
  return {};
}

Result<GradientNorm::Value> Session::Norm(uint64_t step) {
  PENSTOCK_TRY(CheckOpen(step));
  PENSTOCK_TRY(CheckComplete());
  Result<GradientNorm::Value> gradient = FinishGradients();
  static_cast<void>(life_.Keep(gradient.status()));
  return gradient;
}

Result<GradientNorm::Value> Session::FinishGradients() {
  if (gradient_) return *gradient_;
  Doing("waits for the gradients of the step");
  PENSTOCK_ASSIGN(gradient_, states_.FinishGradients());
  gradients_at_ = std::chrono::steady_clock::now();
  return *gradient_;
}

Result<StepOutcome> Session::Finish(uint64_t step, const StepNote& note, StepEnd end) {
  PENSTOCK_TRY(CheckOpen(step));
  PENSTOCK_TRY(CheckComplete());
  Result<StepOutcome> outcome = FinishOpen(note, std::move(end));
  // A step without a loss is over and changed nothing.
  if (!life_.Keep(outcome.status()).ok()) life_.DropStep();
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
  if (loss) life_.ForwardDone(std::isfinite(loss->value));
  return loss;
}

/// The device has done all work when the gradients are there: a loss that the stream reports is in.
Result<StepOutcome> Session::FinishOpen(const StepNote& note, StepEnd end) {
  const bool alone = layout().world_size == 1;
  if (!alone) states_.SetNote(note);
  const Result<GradientNorm::Value> gradient = FinishGradients();
  const std::optional<ReportedLoss> loss = TakeLoss();
  PENSTOCK_TRY(gradient.status());
  if (life_.losses() == LossReports::kEachStep && !loss) {
    PENSTOCK_TRY(states_.SkipStep());
    return MakeError(
        ErrorCode::kInvalidArgument, "step {} was finished before its loss was reported; {}",
        state().step + 1,
        layout().world_size == 1
            ? "report it from the compute stream, or before the step is finished"
            : "with several ranks, report the losses of the micro-batches by Step::ReportLosses");
  }
  const Result<StepDecision> decision = life_.Decide(*gradient, end.scalars);
  const bool skip = !decision.ok() || decision->skip;
  PENSTOCK_TRY(skip ? states_.SkipStep() : UpdateStep(decision->grad_scale, std::move(end.groups)));
  PENSTOCK_TRY(decision.status());
  if (const std::optional<StepOrder> order = life_.EndStep(*decision)) states_.SetOrder(*order);
  const std::span<const StepNote> notes = alone ? std::span(&note, 1) : states_.notes();
  return StepOutcome{.step = state().step,
                     .lr = lr_,
                     .grad_norm = decision->grad_norm,
                     .loss_scale = life_.next_scale(),
                     .skipped = skip,
                     .notes = {notes.begin(), notes.end()},
                     .loss_at = loss ? loss->at : gradients_at_,
                     .gradients_at = gradients_at_};
}

/// The learning rate of the step is that of the first group.
Status Session::UpdateStep(double grad_scale, std::vector<GroupSpec> groups) {
  if (!groups.empty()) {
    lr_ = groups.front().lr.value_or(lr_);
    states_.SetGroups(std::move(groups), lr_);
  }
  return states_.UpdateStep(grad_scale);
}

Result<StepOutcome> Session::Skip(uint64_t step) {
  PENSTOCK_TRY(CheckOpen(step));
  PENSTOCK_TRY(life_.CheckEnd());
  if (requires_loss()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "step {} was skipped before its loss was reported; report it first, or drop "
                     "the step",
                     state().step + 1);
  }
  static_cast<void>(TakeLoss());
  const Status dropped = DropStates();
  life_.Fail(dropped);
  if (dropped.ok()) {
    life_.SkipStep();
  } else {
    life_.DropStep();
  }
  EndStep();
  PENSTOCK_TRY(dropped);
  return StepOutcome{.step = state().step,
                     .lr = lr_,
                     .grad_norm = std::numeric_limits<double>::infinity(),
                     .loss_scale = life_.next_scale(),
                     .skipped = true};
}

/// Gives up what the open step has given to the states.
Status Session::DropStates() {
  for (const ModuleId module : offload::Ids<ModuleId>(modules_.size())) {
    for (; Of(module).held > 0; --Of(module).held) device().Release(module);
  }
  return gradient_ ? states_.SkipStep() : states_.DropStep();
}

Status Session::Drop(uint64_t step) {
  PENSTOCK_TRY(CheckOpen(step));
  static_cast<void>(TakeLoss());
  Status dropped = DropStates();
  life_.Fail(dropped);
  life_.DropStep();
  EndStep();
  return dropped;
}

void Session::EndStep() {
  gradient_.reset();
  for (Module& module : modules_) module = {};
}

}  // namespace penstock::zero
