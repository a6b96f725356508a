#include "bench/step_machine.h"

#include <fmt/format.h>

#include <utility>

#include "train/plan/setup.h"

namespace penstock::bench {

using train::Gpt2;

double SecondsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

Result<StepMachine> StepMachine::Create(const Options& options) {
  StepMachine machine;
  const auto& [config, shape] = options.model;
  PENSTOCK_ASSIGN(machine.config_, config::ParseConfig({{"benchmark", options.config}}, 1));
  train::ChooseThreads(device::Kind::kCpu, {}, &machine.config_);
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
                      *machine.device_, train::Gpt2Operators(config, shape, machine.config_.dtype,
                                                             machine.config_.compute_threads)));
  PENSTOCK_ASSIGN(machine.model_, Gpt2::Create(config, shape, machine.config_.dtype,
                                               *machine.device_, *machine.operators_));
  PENSTOCK_ASSIGN(
      machine.state_operators_,
      kernels::CreateStateOperators(machine.device_->kind(), machine.config_.compute_threads));
  machine.device_for_engine_ = options.device_memory - machine.device_->used();
  machine.host_for_engine_ = options.host_memory;
  PENSTOCK_ASSIGN(std::unique_ptr<zero::Engine> engine,
                  zero::Engine::Create({.model = machine.spec_,
                                        .config = machine.config_,
                                        .state_folders = {options.state_folder},
                                        .host_memory = options.host_memory,
                                        .device_reserved = machine.device_->used(),
                                        .meter = machine.meter_.get()},
                                       *machine.device_, *machine.state_operators_));
  machine.engine_ = std::make_unique<PhaseEngine>(std::move(engine), machine.spec_);
  machine.session_ = std::make_unique<zero::Session>(*machine.engine_);
  PENSTOCK_TRY(machine.session_->Initialize(train::Gpt2Initialization(config, 0)));
  return machine;
}

Status StepMachine::Begin() {
  PENSTOCK_ASSIGN(zero::Step step, session_->BeginStep());
  step_.emplace(std::move(step));
  return {};
}

Status StepMachine::Compute() {
  PENSTOCK_TRY(Begin());
  return model_->ForwardBackward(*step_, inputs_, targets_);
}

Status StepMachine::ComputePhases(const std::function<void()>& mark) {
  engine_->MarkBackward(mark);
  PENSTOCK_TRY(Compute());
  engine_->MarkBackward({});
  return session_->compute_stream().Synchronize();
}

Status StepMachine::Update() {
  Status finished = step_->Finish().status();
  step_.reset();
  return finished;
}

Status StepMachine::Drain() { return session_->Drain(); }

uint64_t StepMachine::parameters() const { return session_->layout().model.elements(); }

}  // namespace penstock::bench
