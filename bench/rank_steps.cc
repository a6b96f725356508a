#include "bench/rank_steps.h"

#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>

#include "base/thread.h"
#include "comm/communicator.h"
#include "device/device.h"
#include "kernels/state/state_operators.h"
#include "zero/session/session.h"

namespace penstock::bench {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr offload::Uuid kStateOfAllRanks = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};

/// A folder that is removed with what is in it.
class OwnFolder {
 public:
  static Result<OwnFolder> Create(const std::string& in) {
    const std::string path = in + "/penstock-ranks." + std::to_string(::getpid());
    std::error_code failed;
    if (std::filesystem::create_directory(path, failed)) return OwnFolder(path);
    return MakeError(ErrorCode::kIo, "cannot create {}: {}", path,
                     failed ? failed.message() : "it exists");
  }
  OwnFolder(OwnFolder&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  OwnFolder& operator=(OwnFolder&&) = delete;
  ~OwnFolder() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  explicit OwnFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

/// One rank's training.
class RankThread {
 public:
  RankThread(const RankCase& rank_case, const RankPlan& plan, device::Device& device,
             comm::Communicator& communicator)
      : rank_case_(rank_case),
        plan_(plan),
        compute_(ComputeOf(rank_case.model, plan.spec)),
        device_(device),
        communicator_(communicator) {}

  Status Run(const std::string& folder, uint64_t steps, RankSteps* measured) {
    auto operators = kernels::CreateStateOperators(device::Kind::kCpu, 1);
    PENSTOCK_TRY(operators.status());
    zero::EngineOptions options{.model = plan_.spec, .config = ConfigOf(rank_case_)};
    options.state_folders = {folder};
    options.state_uuid = kStateOfAllRanks;
    options.host_memory = rank_case_.host_memory;
    if (rank_case_.ranks > 1) options.communicator = &communicator_;
    PENSTOCK_ASSIGN(const std::unique_ptr<zero::Session> session,
                    zero::Session::Create(std::move(options), zero::LossReports::kEachStep, device_,
                                          **operators));
    PENSTOCK_TRY(session->Initialize(
        [](zero::ModuleId, size_t, uint64_t, std::span<float>) { return Status(); }));
    PENSTOCK_TRY(ComputeStep(*session));
    const zero::EngineCounters before = session->counters();
    for (uint64_t step = 0; step < steps; ++step) {
      const auto begin = SteadyClock::now();
      PENSTOCK_TRY(ComputeStep(*session));
      const std::chrono::duration<double> took = SteadyClock::now() - begin;
      measured->step_s.push_back(took.count());
    }
    const zero::EngineCounters after = session->counters();
    const auto per_step = [&](uint64_t begin, uint64_t end) {
      return static_cast<double>(end - begin) / static_cast<double>(steps);
    };
    measured->drive = {.read = per_step(before.nvme_read_bytes, after.nvme_read_bytes),
                       .written = per_step(before.nvme_write_bytes, after.nvme_write_bytes)};
    return session->Drain();
  }

 private:
  Status ComputeStep(zero::Session& session) {
    PENSTOCK_ASSIGN(zero::Step step, session.BeginStep());
    for (size_t use = 0; use < plan_.spec.step.size(); ++use) PENSTOCK_TRY(ComputeUse(step, use));
    return step.Finish().status();
  }

  Status ComputeUse(zero::Step& step, size_t number) {
    const auto [module, backward] = plan_.spec.step[number];
    auto& stream = static_cast<device::CpuStream&>(step.compute_stream());
    {
      PENSTOCK_ASSIGN(const zero::Use use, step.Acquire(module));
      const uint64_t micro_batches = rank_case_.model.micro_batches;
      const std::chrono::duration<double> time(compute_[number] /
                                               static_cast<double>(micro_batches));
      for (uint64_t i = 0; i < micro_batches; ++i) {
        if (backward) PENSTOCK_TRY(step.Gradients(module).status());
        stream.Launch([time] { std::this_thread::sleep_for(time); });
        if (backward) PENSTOCK_TRY(step.AddGradients(module));
      }
    }
    const bool head = offload::Index(module) == rank_case_.model.layers;
    if (head) PENSTOCK_TRY(ReportLosses(step));
    return backward ? step.ReduceGradients(module) : Status();
  }

  /// They are zero.
  Status ReportLosses(zero::Step& step) const {
    PENSTOCK_TRY(step.Losses(rank_case_.model.micro_batches).status());
    return step.ReportLosses(1);
  }

  const RankCase& rank_case_;
  const RankPlan& plan_;
  const std::vector<double> compute_;
  device::Device& device_;
  comm::Communicator& communicator_;
};

}  // namespace

Result<RankSteps> MeasureRankSteps(const RankCase& rank_case, const std::string& folder,
                                   uint64_t steps) {
  PENSTOCK_ASSIGN(const RankPlan plan, PlanOf(rank_case));
  PENSTOCK_ASSIGN(const OwnFolder states, OwnFolder::Create(folder));
  std::vector<std::unique_ptr<device::Device>> devices;
  std::vector<device::Device*> borrowed;
  for (uint32_t rank = 0; rank < rank_case.ranks; ++rank) {
    PENSTOCK_ASSIGN(std::unique_ptr<device::Device> device,
                    device::CreateCpuDevice({.memory = plan.device_memory}));
    borrowed.push_back(device.get());
    devices.push_back(std::move(device));
  }
  PENSTOCK_ASSIGN(
      const auto communicators,
      comm::CreateLocal(borrowed,
                        comm::LinkSpeed{.gigabytes_per_second = rank_case.link.bytes_a_second / 1e9,
                                        .latency_seconds = rank_case.link.latency}));
  std::vector<Status> outcomes(rank_case.ranks);
  std::vector<RankSteps> measured(rank_case.ranks);
  std::vector<std::thread> threads;
  Status started;
  for (uint32_t rank = 0; rank < rank_case.ranks && started.ok(); ++rank) {
    Result<std::thread> thread = StartThread("a rank", [&, rank] {
      RankThread training(rank_case, plan, *devices[rank], *communicators[rank]);
      outcomes[rank] = training.Run(states.path(), steps, &measured[rank]);
      if (!outcomes[rank].ok()) communicators[rank]->Abort(outcomes[rank].error());
    });
    started = thread.status();
    if (thread.ok()) {
      threads.push_back(std::move(thread).value());
    } else {
      communicators[rank]->Abort(started.error());
    }
  }
  for (std::thread& thread : threads) thread.join();
  if (!started.ok()) return started.error();
  for (const Status& outcome : outcomes) PENSTOCK_TRY(outcome);
  return measured.front();
}

}  // namespace penstock::bench
