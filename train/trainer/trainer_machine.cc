#include "train/trainer/trainer_machine.h"

#include <fcntl.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/file_extents.h"
#include "base/file_system.h"
#include "base/files.h"
#include "base/unique_fd.h"
#include "offload/state_names.h"
#include "train/process/log.h"

namespace penstock::train {
namespace {

/// Arena bytes of NCCL's first operations for each rank: both sides of an exchange.
constexpr Bytes kTrialMemory = 8_MiB;

/// Returns the GPU memory that NCCL holds. That is known only after it has run, and the arena is
/// allocated at once: so NCCL first runs on a small one. A second start takes as much.
Result<Bytes> LibraryMemory(const TrainJob& job, Ranks& ranks) {
  if (ranks.alone() || job.device != device::Kind::kCuda) return 0_B;
  const Bytes memory = std::min(job.budget.device, kTrialMemory * ranks.world().size);
  PENSTOCK_ASSIGN(const std::unique_ptr<device::Device> device,
                  device::CreateCudaDevice({.memory = memory}));
  PENSTOCK_ASSIGN(const std::unique_ptr<comm::Communicator> communicator,
                  ranks.CreateCommunicator(*device, /*meter=*/nullptr));
  return communicator->device_bytes();
}

Result<std::unique_ptr<device::Device>> CreateDevice(const TrainJob& job, Bytes library,
                                                     ActivityMeter* meter) {
  PENSTOCK_ASSIGN(const Bytes memory, ArenaBeside(library, job.needs, job.budget));
  const device::DeviceOptions options = {.memory = memory, .meter = meter};
  return job.device == device::Kind::kCuda ? device::CreateCudaDevice(options)
                                           : device::CreateCpuDevice(options);
}

Result<std::vector<std::string>> StateFolders(const config::Config& config,
                                              const std::string& run) {
  if (config.nvme_paths.empty()) return std::vector{run};
  std::vector<std::string> folders;
  for (const std::string& path : config.nvme_paths) {
    PENSTOCK_ASSIGN(std::string absolute, AbsolutePath(path));
    folders.push_back(std::move(absolute));
  }
  return folders;
}

/// Extents that a snapshot shares with the state were reserved once, but writing them takes new
/// space.
void LogShared(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  const Result<FileExtents> extents = ReadExtents(file.get());
  if (!extents.ok() || extents->shared == 0_B) return;
  const Result<Bytes> free = FreeSpace(path);
  LogNotice(fmt::format(
      "{} shares {} with copies of it, such as snapshots: writing them takes as much new space, "
      "which is not reserved{}",
      path, ToString(extents->shared),
      free.ok() ? fmt::format("; {} are free", ToString(*free)) : std::string()));
}

void LogFileSystems(const config::Config& config, const std::vector<std::string>& folders) {
  if (config.aio.simulate) return;  // nothing of the state is written there
  const char* const what = config.nvme_paths.empty() ? "the run's folder" : "nvme_path";
  for (const std::string& folder : folders) LogFileSystem(what, folder);
}

/// Exchanges the paths of the ranks' files, and returns those of all.
Result<StateFiles> FilesOfAll(std::vector<std::string> mine, const offload::Uuid& uuid,
                              Ranks& ranks) {
  if (ranks.alone()) return StateFiles::OfOneRank(std::move(mine), offload::ToString(uuid));
  PENSTOCK_ASSIGN(const std::vector<std::string> all,
                  ranks.job().Gather(nlohmann::json(mine).dump()));
  StateFiles files{.uuid = offload::ToString(uuid)};
  for (size_t rank = 0; rank < all.size(); ++rank) {
    files.ranks.push_back(
        {.paths = nlohmann::json::parse(all[rank]).get<std::vector<std::string>>(),
         .host = ranks.job().hosts()[rank]});
  }
  return files;
}

}  // namespace

Result<StatePlan> PlanNewState(const TrainJob& job, const std::string& run,
                               const offload::Uuid& uuid, Ranks& ranks) {
  StatePlan plan{.uuid = uuid};
  Result<std::vector<std::string>> folders = StateFolders(job.config, run);
  PENSTOCK_TRY(ranks.Agree(folders.status()));
  plan.folders = *std::move(folders);
  PENSTOCK_ASSIGN(plan.files, FilesOfAll(offload::StatePathsIn(plan.folders, uuid, job.world.rank),
                                         uuid, ranks));
  return plan;
}

Result<StatePlan> PlanStateAfter(ResumePoint& from, const TrainJob& job, const std::string& run,
                                 const offload::Uuid& uuid, Ranks& ranks) {
  Result<std::vector<std::string>> folders = StateFolders(job.config, run);
  PENSTOCK_TRY(ranks.Agree(folders.status()));
  const bool mine_fit = FitsInPlace(from, job.layout(), job.config.durable, *folders);
  PENSTOCK_ASSIGN(const std::vector<std::string> fit, ranks.job().Gather(mine_fit ? "yes" : "no"));
  const auto other = std::ranges::find(fit, "no");
  if (other != fit.end() && from.own_share) {
    PENSTOCK_TRY(ranks.Agree(Status(MakeError(
        ErrorCode::kInvalidArgument,
        "--resume: rank {} has other tiles, paths or durability than its files, or these have "
        "other hard links, and each rank sees its own files only, so that the state "
        "cannot be moved; keep them, or put the files where all ranks see them",
        other - fit.begin()))));
  }
  if (other != fit.end()) {
    PENSTOCK_ASSIGN(StatePlan moved, PlanNewState(job, run, uuid, ranks));
    moved.moved = true;
    return moved;
  }
  StatePlan plan{.folders = *std::move(folders),
                 .files = *from.info.state,
                 .adopt = true,
                 .at = from.state->commit()};
  from.state.reset();  // the engine opens the files
  PENSTOCK_TRY(ranks.Agree(Status()));
  return plan;
}

namespace {

/// Makes the parts in their order.
Status MakeParts(const TrainOptions& given, const TrainJob& job, const StatePlan& state,
                 Ranks& ranks, uint64_t session_number, Machine& machine) {
  if (given.trace) {
    // Each rank has its own trace.
    const std::string of_rank = ranks.first() ? "" : fmt::format(".r{}", ranks.world().rank);
    PENSTOCK_ASSIGN(machine.trace, Trace::Create(*given.trace + of_rank));
  }
  machine.meter = std::make_unique<ActivityMeter>(machine.trace.get());
  PENSTOCK_ASSIGN(machine.library_memory, LibraryMemory(job, ranks));
  PENSTOCK_ASSIGN(machine.device, CreateDevice(job, machine.library_memory, machine.meter.get()));
  PENSTOCK_ASSIGN(machine.operators, kernels::CreateModelOperators(
                                         *machine.device, OperatorsFor(*job.model.description,
                                                                       job.shape, job.config)));
  if (ranks.first() && machine.device->kind() == device::Kind::kCuda) {
    LogNotice("operators: " + machine.operators->arithmetic());
  }
  PENSTOCK_ASSIGN(machine.checked, CheckedOperators::Create(*machine.device, *machine.operators));
  PENSTOCK_TRY(ranks.CheckAlike({{"arithmetic", machine.operators->arithmetic()}}));
  PENSTOCK_ASSIGN(machine.communicator,
                  ranks.CreateCommunicator(*machine.device, machine.meter.get()));
  PENSTOCK_ASSIGN(machine.model, job.model.description->Create(job.shape, job.config.dtype,
                                                               *machine.device, *machine.checked));
  PENSTOCK_ASSIGN(machine.state_operators, kernels::CreateStateOperators(
                                               machine.device->kind(), job.config.compute_threads));
  zero::EngineOptions options{
      .model = job.spec,
      .config = job.config,
      .state_folders = state.folders,
      .adopt = state.adopt ? state.files.ranks[job.world.rank].paths : std::vector<std::string>(),
      .state_uuid = state.uuid,
      .verify_first_commit = state.moved,
      .seed = *given.seed,
      .host_memory = job.budget.host,
      .device_reserved = job.needs.reserved.device(),
      .host_reserved = job.needs.reserved.host(),
      .communicator = machine.communicator.get(),
      .commit_session = session_number,
      .meter = machine.meter.get(),
      .warn = LogWarning,
      .doing = ranks.doing(),
      .progressed = ranks.progressed()};
  // A non-finite gradient is searched for instead of ending the run; finite values have the same
  // bits.
  if (given.replay) options.config.check_grad_overflow = true;
  if (state.adopt) options.adopt_at = state.at;
  if (!ranks.alone()) {
    options.vote = [&ranks, session_number, stands = job.config.durable](uint64_t step) -> Status {
      PENSTOCK_TRY(ranks.job().Vote(step, session_number));
      if (stands) ranks.Committed(step);
      return {};
    };
  }
  if (given.change_engine) given.change_engine(options);
  const Ranks::MakingFiles making(ranks);
  PENSTOCK_ASSIGN(machine.session,
                  zero::Session::Create(std::move(options), zero::LossReports::kEachStep,
                                        *machine.device, *machine.state_operators));
  return {};
}

}  // namespace

Result<Machine> CreateMachine(const TrainOptions& given, const TrainJob& job,
                              const StatePlan& state, Ranks& ranks, uint64_t session_number) {
  LogFileSystems(job.config, state.folders);
  if (state.adopt) {
    for (const std::string& path : state.files.ranks[job.world.rank].paths) LogShared(path);
  }
  Machine machine;
  PENSTOCK_TRY(ranks.OrEnd(MakeParts(given, job, state, ranks, session_number, machine)));
  LogNotices(machine.session->notices());
  return machine;
}

}  // namespace penstock::train
