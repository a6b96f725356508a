#include "train/trainer.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "kernels/operators.h"
#include "train/interrupt.h"
#include "train/log.h"
#include "train/progress.h"
#include "train/run_folder.h"
#include "train/trainer_job.h"
#include "train/trainer_loop.h"

namespace penstock::train {
namespace {

constexpr uint64_t kDefaultStepsPerPrint = 10;

/// What a step runs on. Members are destroyed last to first: the engine finishes its work while
/// what it works on still exists.
struct Machine {
  std::unique_ptr<ActivityMeter> meter = std::make_unique<ActivityMeter>();
  std::unique_ptr<device::Device> device;
  std::unique_ptr<kernels::Operators> operators;
  std::unique_ptr<Gpt2> model;
  std::unique_ptr<zero::Engine> engine;
};

Result<std::unique_ptr<device::Device>> CreateDevice(const TrainJob& job, ActivityMeter* meter) {
  const device::DeviceOptions options = {.memory = job.budget.device, .meter = meter};
  return job.device == device::Kind::kCuda ? device::CreateCudaDevice(options)
                                           : device::CreateCpuDevice(options);
}

std::string StateFolder(const zero::Config& config, const RunFolder& folder) {
  const bool nvme = config.parameter_home == Tier::kNvme || config.optimizer_home == Tier::kNvme;
  return nvme ? std::filesystem::absolute(config.nvme_path).string() : folder.path();
}

Result<Machine> CreateMachine(const TrainJob& job, const RunFolder& folder) {
  Machine machine;
  PENSTOCK_ASSIGN(machine.device, CreateDevice(job, machine.meter.get()));
  PENSTOCK_ASSIGN(machine.operators,
                  kernels::CreateOperators(*machine.device,
                                           OperatorsFor(job.model.config, job.shape, job.config)));
  PENSTOCK_ASSIGN(machine.model, Gpt2::Create(job.model.config, job.shape, job.config.dtype,
                                              *machine.device, *machine.operators));
  zero::EngineOptions options{.model = job.spec,
                              .config = job.config,
                              .state_folder = StateFolder(job.config, folder),
                              .host_memory = job.budget.host,
                              .device_reserved = job.needs.device_reserved,
                              .meter = machine.meter.get()};
  PENSTOCK_ASSIGN(machine.engine,
                  zero::Engine::Create(std::move(options), *machine.device, *machine.operators));
  LogNotices(machine.engine->notices());
  return machine;
}

Status WriteRunInfo(const TrainOptions& options, const TrainJob& job, const Machine& machine,
                    const RunFolder& folder) {
  return folder.WriteInfo({.version = PENSTOCK_VERSION,
                           .state_path = machine.engine->state_path(),
                           .state_uuid = machine.engine->state_uuid(),
                           .model_json = job.model.config_json,
                           .data_path = job.data_path,
                           .data_order = ToString(options.data_order),
                           .device = device::ToString(job.device),
                           .seed = options.seed,
                           .sequence_length = job.shape.sequence});
}

/// What a commit keeps so that a later program recognises the run it belongs to.
std::string RunIdentity(const TrainOptions& options, const TrainJob& job, const Machine& machine) {
  const nlohmann::ordered_json json = {
      {"state_uuid", machine.engine->state_uuid()},
      {"program", PENSTOCK_VERSION},
      {"data", job.data_path},
      {"data_order", ToString(options.data_order)},
      {"sequence_length", job.shape.sequence},
      {"train_batch_size", job.config.train_batch_size},
      {"micro_batch_size", job.config.micro_batch_size},
      {"dtype", ToString(job.config.dtype)},
  };
  return json.dump();
}

/// `source` that ends with kCancelled when the user wants to stop.
zero::TensorSource Interruptible(zero::TensorSource source, const Interrupt& interrupt) {
  return [source = std::move(source), &interrupt](zero::ModuleId module, size_t tensor,
                                                  uint64_t begin, std::span<float> values) {
    if (interrupt.requested()) {
      return Status(MakeError(ErrorCode::kCancelled,
                              "interrupted before the first step: nothing was trained and nothing "
                              "is kept"));
    }
    return source(module, tensor, begin, values);
  };
}

ModelCost CostOf(const TrainJob& job, const offload::Layout& layout) {
  return {.parameters = layout.parameters,
          .layers = job.model.config.n_layer,
          .width = job.model.config.n_embd,
          .sequence = job.shape.sequence};
}

LoopOptions MakeLoopOptions(const TrainOptions& options, const TrainJob& job,
                            const Machine& machine) {
  return {.config = job.config,
          .shape = job.shape,
          .cost = CostOf(job, machine.engine->layout()),
          .last_step = job.last_step,
          .start = {.seed = options.seed,
                    .compute_threads = static_cast<uint32_t>(job.config.compute_threads),
                    .run_json = RunIdentity(options, job, machine)}};
}

Progress::Options ProgressOptions(const TrainJob& job) {
  const auto every = static_cast<uint64_t>(job.config.steps_per_print);
  return {.out = stderr,
          .terminal = ::isatty(STDERR_FILENO) != 0,
          .every = every == 0 ? kDefaultStepsPerPrint : every,
          .last_step = job.last_step};
}

RunSummary Summarise(const TrainOptions& options, const TrainJob& job, const Machine& machine,
                     const LoopSummary& loop) {
  return {.loop = loop,
          .cost = CostOf(job, machine.engine->layout()),
          .device_memory = job.budget.device,
          .host_memory = job.budget.host,
          .aio_engine = machine.engine->aio_engine(),
          .device = device::ToString(job.device),
          .device_name = machine.device->name(),
          .seed = options.seed,
          .config = job.config,
          .layout = machine.engine->layout()};
}

std::optional<std::string> ReadEnvironment(const std::string& name) {
  // Nothing here changes the environment.
  const char* value = std::getenv(name.c_str());  // NOLINT(concurrency-mt-unsafe)
  if (value == nullptr) return std::nullopt;
  return std::string(value);
}

}  // namespace

Result<RunSummary> Train(const TrainOptions& options) {
  PENSTOCK_TRY(CheckOneRank(ReadEnvironment));
  PENSTOCK_ASSIGN(TrainJob job, PrepareJob(options));
  const Interrupt interrupt(
      "penstock: finishing this step and committing; interrupt again to quit at once");
  PENSTOCK_ASSIGN(RunFolder folder, RunFolder::Create(options.out));
  PENSTOCK_ASSIGN(Machine machine, CreateMachine(job, folder));
  PENSTOCK_TRY(WriteRunInfo(options, job, machine, folder));
  PENSTOCK_TRY(machine.engine->Initialize(Interruptible(job.weights, interrupt)));
  PENSTOCK_ASSIGN(MetricsWriter metrics, MetricsWriter::Create(folder.MetricsPath()));
  Progress progress(ProgressOptions(job));
  TrainLoop loop({.engine = *machine.engine,
                  .model = *machine.model,
                  .data = job.data,
                  .device = *machine.device,
                  .meter = *machine.meter,
                  .metrics = metrics,
                  .progress = progress,
                  .stop_requested = [&interrupt] { return interrupt.requested(); },
                  .keep_folder = [&] { folder.Keep(); }},
                 MakeLoopOptions(options, job, machine));
  PENSTOCK_ASSIGN(const LoopSummary done, loop.Run());
  progress.Finish();
  RunSummary summary = Summarise(options, job, machine, done);
  PENSTOCK_TRY(folder.WriteSummary(ToJson(summary)));
  return summary;
}

}  // namespace penstock::train
