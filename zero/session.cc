#include "zero/session.h"

#include <chrono>
#include <cmath>

#include "zero/lr_schedule.h"

namespace penstock::zero {
namespace {

LifeRules RulesOf(const config::Config& config, bool reports_loss) {
  return {.step = {config.gradient_clipping, config.check_grad_overflow},
          .loss_scaling = config.loss_scaling,
          .reports_loss = reports_loss,
          .two_slots = config.durable};
}

}  // namespace

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
      life_(engine.options().model, RulesOf(config_, reports_loss),
            {.seed = engine.options().seed,
             .compute_threads = static_cast<uint32_t>(config_.compute_threads)}),
      modules_(engine.layout().model.modules.size()) {
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
  PENSTOCK_TRY(Filled(engine_.FillTiles(FillFromTensors(layout(), source, accumulator))));
  life_.FillAll();
  return {};
}

Status Session::Fill(const TileFill& fill, const TrainState& state) {
  PENSTOCK_TRY(CheckEmpty());
  PENSTOCK_TRY(Filled(engine_.FillTiles(fill)));
  life_.FillFrom(state);
  return {};
}

Result<TrainState> Session::Adopt() {
  PENSTOCK_TRY(CheckEmpty());
  Result<TrainState> adopted = engine_.Adopt();
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
  PENSTOCK_TRY(BeginEngine(state().step + 1));
  life_.BeginStep();
  micro_batches_ = of_step;
  if (!reports_loss_) engine_.AllowUpdates();
  MutexLock lock(mutex_);
  reporting_ = life_.steps_begun();
  loss_.reset();
  return Opened();
}

/// No loss of it counts: reporting_ says so.
Result<Step> Session::RepeatStep() {
  PENSTOCK_TRY(life_.CheckRepeat());
  PENSTOCK_TRY(BeginEngine(state().step));
  life_.RepeatStep();
  return Opened();
}

Status Session::BeginEngine(uint64_t number) {
  const uint64_t t = state().optimizer_steps + 1;
  PENSTOCK_TRY(CheckBetas(config_.scheduler, t));
  lr_ = LearningRate(config_.scheduler, config_.optimizer.lr, t);
  engine_.NumberStep(number);
  return engine_.BeginStep(lr_, t);
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
  const Result<const std::byte*> weights = engine_.Acquire(module);
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
  engine_.Release(module);
}

void Session::Reduced(ModuleId module) {
  Of(module).reduced = true;
  life_.Reduce(module);
}

void Session::ReportLoss(uint64_t step, double loss) {
  MutexLock lock(mutex_);
  if (!reports_loss_ || reporting_ != step || loss_) return;
  loss_ = ReportedLoss{.value = loss, .at = std::chrono::steady_clock::now()};
  // With the mutex held: the step cannot end before, and what follows it is another step's.
  if (std::isfinite(loss)) engine_.AllowUpdates();
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

Result<StepOutcome> Session::Finish(uint64_t step, const StepNote& note) {
  PENSTOCK_TRY(CheckOpen(step));
  PENSTOCK_TRY(CheckComplete());
  Result<StepOutcome> outcome = FinishOpen(note);
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
        state().step + 1,
        layout().world_size == 1
            ? "report it from the compute stream, or before the step is finished"
            : "with several ranks, report the losses of the micro-batches by Step::ReportLosses");
  }
  const Result<StepDecision> decision = life_.Decide(*gradient);
  const bool skip = !decision.ok() || decision->skip;
  PENSTOCK_TRY(skip ? engine_.SkipStep() : engine_.UpdateStep(decision->grad_scale));
  PENSTOCK_TRY(decision.status());
  if (const std::optional<StepOrder> order = life_.EndStep(*decision)) engine_.SetOrder(*order);
  const std::span<const StepNote> notes = alone ? std::span(&note, 1) : engine_.notes();
  return StepOutcome{.step = state().step,
                     .lr = lr_,
                     .grad_norm = decision->grad_norm,
                     .loss_scale = life_.next_scale(),
                     .skipped = skip,
                     .notes = {notes.begin(), notes.end()},
                     .loss_at = loss ? loss->at : gradients_at,
                     .gradients_at = gradients_at};
}

Status Session::Drop(uint64_t step) {
  PENSTOCK_TRY(CheckOpen(step));
  for (const ModuleId module : offload::Ids<ModuleId>(modules_.size())) {
    for (; Of(module).held > 0; --Of(module).held) engine_.Release(module);
  }
  static_cast<void>(TakeLoss());
  Status dropped = engine_.DropStep();
  life_.Fail(dropped);
  life_.DropStep();
  EndStep();
  return dropped;
}

void Session::EndStep() {
  for (Module& module : modules_) module = {};
}

}  // namespace penstock::zero
