#include "train/trainer/prepared_new_run.h"

#include <unistd.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "run/state_owner.h"
#include "train/trainer/run_beginning.h"
#include "train/trainer/run_facts.h"

namespace penstock::train {
namespace {

/// `options` with the defaults of a new run.
TrainOptions CompleteNew(TrainOptions options) {
  options.seed = options.seed.value_or(0);
  options.data_order = options.data_order.value_or(DataOrder::kShuffle);
  return options;
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

/// Removes a run that has not begun: a rank's files and, on rank 0, RUN. A killed rank cannot
/// remove its own files: rank 0 does so on its host, and keeps RUN, which names them, if ranks are
/// on other hosts.
std::function<void()> RemovalOf(const StateFiles& files, const comm::World& world,
                                const std::string& run) {
  if (world.size == 1) return {};
  const RankFiles& own = files.ranks[world.rank];
  if (world.rank > 0) {
    return [paths = own.paths] {
      for (const std::string& path : paths) ::unlink(path.c_str());
    };
  }
  std::vector<std::string> paths;
  bool one_host = true;
  for (const RankFiles& rank : files.ranks) {
    if (rank.host == own.host) paths.insert(paths.end(), rank.paths.begin(), rank.paths.end());
    one_host = one_host && rank.host == own.host;
  }
  return [paths = std::move(paths), one_host, run, uuid = files.uuid] {
    for (const std::string& path : paths) ::unlink(path.c_str());
    if (one_host) RemoveNewRun(run, uuid);
  };
}

/// Until the first commit, run.json lists the state as unfinished.
Status WriteBeforeCommit(const RunFolder& folder, RunInfo info) {
  info.leftovers = {*info.state};
  info.state.reset();
  return folder.WriteInfo(info);
}

/// Makes the CSV files, on rank 0, if the configuration has them.
Status CreateMonitor(PreparedRun& run) {
  if (!run.folder || !run.job.config.csv_monitor) return {};
  PENSTOCK_ASSIGN(run.monitor, CsvMonitor::Create(run.job.config));
  return {};
}

}  // namespace

Result<PreparedRun> PrepareNewRun(const TrainOptions& given, ModelFamilies families, Ranks& ranks) {
  TrainOptions options = CompleteNew(given);
  PENSTOCK_ASSIGN(TrainJob job, ranks.Agree(PrepareJob(options, nullptr, families, ranks.place())));
  PENSTOCK_TRY(CheckAllAlike(options, job, nullptr, ranks));
  PENSTOCK_TRY(ranks.Agree(ranks.first() ? CsvMonitor::CheckFree(job.config) : Status()));
  auto interrupt = std::make_unique<Interrupt>(kInterruptNotice);
  std::optional<RunFolder> folder;
  PENSTOCK_ASSIGN(const Beginning beginning, BeginTogether(options, ranks, folder));
  if (ranks.first() && !ranks.alone()) {
    ranks.SetCleanup([run = beginning.run, uuid = offload::ToString(beginning.state)] {
      RemoveNewRun(run, uuid);
    });
  }
  PENSTOCK_TRY(
      ranks.Agree(folder ? CheckNoOrphan(beginning.run, job.config.nvme_paths) : Status()));
  PENSTOCK_ASSIGN(const StatePlan state, PlanNewState(job, beginning.run, beginning.state, ranks));
  RunInfo info = InfoOf(options, job, beginning.run, state.files, state.files.uuid);
  ranks.SetCleanup(RemovalOf(state.files, job.world, beginning.run));
  // This precedes all files that a kill could leave behind.
  PENSTOCK_TRY(ranks.Agree(folder ? WriteBeforeCommit(*folder, info) : Status()));
  ranks.ReportTo(beginning.run, info.run_uuid);
  PENSTOCK_ASSIGN(Machine machine,
                  CreateMachine(options, job, state, ranks, beginning.session_number));
  PENSTOCK_TRY(ranks.Agree(machine.session->Initialize(Interruptible(job.weights, *interrupt))));
  PreparedRun run{.folder = std::move(folder),
                  .options = std::move(options),
                  .job = std::move(job),
                  .interrupt = std::move(interrupt),
                  .info = std::move(info),
                  .machine = std::move(machine)};
  PENSTOCK_TRY(ranks.Agree(Complete(run, [](RunFolder& made) { return made.CreateRows(); })));
  PENSTOCK_TRY(ranks.Agree(CreateMonitor(run)));
  return run;
}

}  // namespace penstock::train
