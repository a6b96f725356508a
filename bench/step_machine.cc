#include "bench/step_machine.h"

#include <fmt/format.h>

#include <utility>

#include "train/budget.h"
#include "train/trainer_job.h"

namespace penstock::bench {
namespace {

using train::Gpt2;

/// Hands everything to another engine, and marks on the compute stream where backward begins.
class PhaseEngine final : public zero::Engine {
 public:
  PhaseEngine(zero::Engine& engine, const zero::ModelSpec& model, std::function<void()> mark)
      : engine_(engine), mark_(std::move(mark)) {
    while (!model.step[first_backward_].backward) ++first_backward_;
  }

  Result<const std::byte*> Acquire(zero::ModuleId module) override {
    if (use_++ == first_backward_) engine_.compute_stream().Call(mark_);
    return engine_.Acquire(module);
  }
  Status FillTiles(const zero::TileFill& fill) override { return engine_.FillTiles(fill); }
  Result<zero::TrainState> Adopt() override { return engine_.Adopt(); }
  const offload::ShardLayout& layout() const override { return engine_.layout(); }
  device::Stream& compute_stream() override { return engine_.compute_stream(); }
  void Release(zero::ModuleId module) override { engine_.Release(module); }
  float* Gradients(zero::ModuleId module) override { return engine_.Gradients(module); }
  Status ReduceGradients(zero::ModuleId module) override { return engine_.ReduceGradients(module); }
  Status BeginStep(double lr, uint64_t t) override { return engine_.BeginStep(lr, t); }
  Result<zero::StepOutcome> EndStep() override { return engine_.EndStep(); }
  Status Drain() override { return engine_.Drain(); }
  void BeginCommit(const zero::TrainState& state, std::function<Status()> first) override {
    engine_.BeginCommit(state, std::move(first));
  }
  void ExpectLastStep() override { engine_.ExpectLastStep(); }
  Status FinishCommit() override { return engine_.FinishCommit(); }
  Status CheckCommit() const override { return engine_.CheckCommit(); }
  zero::EngineCounters counters() const override { return engine_.counters(); }
  Bytes host_peak() const override { return engine_.host_peak(); }
  const std::string& aio_engine() const override { return engine_.aio_engine(); }
  const std::vector<std::string>& state_paths() const override { return engine_.state_paths(); }
  const std::string& state_uuid() const override { return engine_.state_uuid(); }
  const std::vector<std::string>& notices() const override { return engine_.notices(); }

 private:
  zero::Engine& engine_;
  const std::function<void()> mark_;
  size_t first_backward_ = 0;
  size_t use_ = 0;
};

}  // namespace

double SecondsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

Result<StepMachine> StepMachine::Create(const Options& options) {
  StepMachine machine;
  const auto& [config, shape] = options.model;
  PENSTOCK_ASSIGN(machine.config_, zero::ParseConfig({{"benchmark", options.config}}, 1));
  train::ChooseThreads(device::Kind::kCpu, &machine.config_);
  const uint64_t tokens = shape.micro_batches * shape.micro_batch * shape.sequence;
  for (uint64_t i = 0; i <= tokens; ++i) {
    const auto token = static_cast<int32_t>(i * i % 251 % config.vocab_size);
    if (i < tokens) machine.inputs_.push_back(token);
    if (i > 0) machine.targets_.push_back(token);
  }
  machine.spec_ = train::Gpt2Spec(config);
  machine.meter_ = std::make_unique<ActivityMeter>();
  PENSTOCK_ASSIGN(machine.device_, device::CreateCpuDevice({.memory = options.device_memory,
                                                            .meter = machine.meter_.get()}));
  PENSTOCK_ASSIGN(machine.operators_,
                  kernels::CreateModelOperators(
                      *machine.device_, train::OperatorsFor(config, shape, machine.config_)));
  PENSTOCK_ASSIGN(machine.model_, Gpt2::Create(config, shape, machine.config_.dtype,
                                               *machine.device_, *machine.operators_));
  PENSTOCK_ASSIGN(
      machine.state_operators_,
      kernels::CreateStateOperators(machine.device_->kind(), machine.config_.compute_threads));
  machine.device_for_engine_ = options.device_memory - machine.device_->used();
  machine.host_for_engine_ = options.host_memory;
  PENSTOCK_ASSIGN(machine.engine_,
                  zero::Engine::Create({.model = machine.spec_,
                                        .config = machine.config_,
                                        .state_folders = {options.state_folder},
                                        .host_memory = options.host_memory,
                                        .device_reserved = machine.device_->used(),
                                        .meter = machine.meter_.get()},
                                       *machine.device_, *machine.state_operators_));
  PENSTOCK_TRY(machine.engine_->Initialize(train::Gpt2Initialization(config, 0)));
  return machine;
}

Status StepMachine::Begin() {
  ++updates_;
  return engine_->BeginStep(1e-4, updates_);
}

Status StepMachine::Compute() {
  PENSTOCK_TRY(Begin());
  return model_->ForwardBackward(*engine_, inputs_, targets_);
}

Status StepMachine::ComputePhases(const std::function<void()>& mark) {
  PENSTOCK_TRY(Begin());
  PhaseEngine engine(*engine_, spec_, mark);
  PENSTOCK_TRY(model_->ForwardBackward(engine, inputs_, targets_));
  return engine_->compute_stream().Synchronize();
}

Status StepMachine::Update() { return engine_->EndStep().status(); }

Status StepMachine::Drain() { return engine_->Drain(); }

uint64_t StepMachine::parameters() const { return engine_->layout().model.elements(); }

}  // namespace penstock::bench
