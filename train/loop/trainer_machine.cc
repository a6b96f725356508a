#include "train/loop/trainer_machine.h"

#include <utility>

#include "offload/state_names.h"
#include "train/process/files.h"
#include "train/process/log.h"

namespace penstock::train {
namespace {

Result<std::unique_ptr<device::Device>> CreateDevice(const TrainJob& job, ActivityMeter* meter) {
  const device::DeviceOptions options = {.memory = job.budget.device, .meter = meter};
  return job.device == device::Kind::kCuda ? device::CreateCudaDevice(options)
                                           : device::CreateCpuDevice(options);
}

Result<std::vector<std::string>> StateFolders(const config::Config& config,
                                              const RunFolder& folder) {
  if (config.nvme_paths.empty()) return std::vector{folder.path()};
  std::vector<std::string> folders;
  for (const std::string& path : config.nvme_paths) {
    PENSTOCK_ASSIGN(std::string absolute, AbsolutePath(path));
    folders.push_back(std::move(absolute));
  }
  return folders;
}

void LogFileSystems(const config::Config& config, const std::vector<std::string>& folders) {
  if (config.aio.simulate) return;  // nothing of the state is written there
  const char* const what = config.nvme_paths.empty() ? "the run's folder" : "nvme_path";
  for (const std::string& folder : folders) LogFileSystem(what, folder);
}

Result<StatePlan> PlanNewFiles(std::vector<std::string> folders) {
  StatePlan plan{.folders = std::move(folders)};
  PENSTOCK_ASSIGN(plan.uuid, offload::RandomUuid());
  plan.files = {.paths = offload::StatePathsIn(plan.folders, plan.uuid),
                .uuid = offload::ToString(plan.uuid)};
  return plan;
}

}  // namespace

Result<StatePlan> PlanNewState(const TrainJob& job, const RunFolder& folder) {
  PENSTOCK_ASSIGN(std::vector<std::string> folders, StateFolders(job.config, folder));
  return PlanNewFiles(std::move(folders));
}

Result<StatePlan> PlanStateAfter(ResumePoint& from, const TrainJob& job, const RunFolder& folder) {
  PENSTOCK_ASSIGN(std::vector<std::string> folders, StateFolders(job.config, folder));
  if (!FitsInPlace(from, job.layout(), job.config.durable, folders)) {
    return PlanNewFiles(std::move(folders));
  }
  from.state.reset();  // the engine takes the files over
  return StatePlan{.folders = std::move(folders), .files = from.info.state, .adopt = true};
}

Result<Machine> CreateMachine(const TrainOptions& given, const TrainJob& job,
                              const StatePlan& state) {
  LogFileSystems(job.config, state.folders);
  Machine machine;
  if (given.trace) {
    PENSTOCK_ASSIGN(machine.trace, Trace::Create(*given.trace));
  }
  machine.meter = std::make_unique<ActivityMeter>(machine.trace.get());
  PENSTOCK_ASSIGN(machine.device, CreateDevice(job, machine.meter.get()));
  PENSTOCK_ASSIGN(machine.operators, kernels::CreateModelOperators(
                                         *machine.device, OperatorsFor(*job.model.description,
                                                                       job.shape, job.config)));
  PENSTOCK_ASSIGN(machine.model,
                  job.model.description->Create(job.shape, job.config.dtype, *machine.device,
                                                *machine.operators));
  PENSTOCK_ASSIGN(machine.state_operators, kernels::CreateStateOperators(
                                               machine.device->kind(), job.config.compute_threads));
  zero::EngineOptions options{.model = job.spec,
                              .config = job.config,
                              .state_folders = state.folders,
                              .adopt = state.adopt ? state.files.paths : std::vector<std::string>(),
                              .state_uuid = state.uuid,
                              .seed = *given.seed,
                              .host_memory = job.budget.host,
                              .device_reserved = job.needs.device_reserved,
                              .host_reserved = job.needs.host_reserved,
                              .meter = machine.meter.get()};
  PENSTOCK_ASSIGN(machine.session,
                  zero::Session::Create(std::move(options), /*reports_loss=*/true, *machine.device,
                                        *machine.state_operators));
  LogNotices(machine.session->notices());
  return machine;
}

}  // namespace penstock::train
