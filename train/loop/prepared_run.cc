#include "train/loop/prepared_run.h"

#include <fmt/format.h>

#include <utility>

#include "train/process/log.h"
#include "train/run/resume.h"
#include "train/run/run_identity.h"
#include "train/run/snapshot.h"

namespace penstock::train {
namespace {

constexpr const char* kInterruptNotice =
    "penstock: finishing this step and committing; interrupt again to quit at once";

/// `options` with the defaults of a new run.
TrainOptions CompleteNew(TrainOptions options) {
  options.seed = options.seed.value_or(0);
  options.data_order = options.data_order.value_or(DataOrder::kShuffle);
  return options;
}

/// `options` with what the run was started with.
TrainOptions CompleteFrom(const RunInfo& info, TrainOptions options) {
  const DataOrder order = info.data_order == ToString(DataOrder::kSequential)
                              ? DataOrder::kSequential
                              : DataOrder::kShuffle;
  options.seed = options.seed.value_or(info.seed);
  options.data_order = options.data_order.value_or(order);
  options.sequence_length = options.sequence_length.value_or(info.sequence_length);
  return options;
}

RunInfo InfoOf(const TrainOptions& options, const TrainJob& job, const StateFiles& state,
               const std::string& run_uuid) {
  return {.version = PENSTOCK_VERSION,
          .run_uuid = run_uuid,
          .state = state,
          .model_json = job.model.config_json,
          .data_path = job.data_path,
          .data_order = ToString(*options.data_order),
          .device = device::ToString(job.device),
          .seed = *options.seed,
          .sequence_length = job.shape.sequence};
}

/// What a commit keeps so that a later program recognises the run it belongs to.
std::string IdentityOf(const TrainOptions& options, const TrainJob& job, std::string arithmetic) {
  return ToJson(RunIdentity{.model = job.model.description->Identity(),
                            .data_fingerprint = job.data_fingerprint,
                            .data_order = ToString(*options.data_order),
                            .seed = *options.seed,
                            .sequence_length = job.shape.sequence,
                            .config = job.config,
                            .arithmetic = std::move(arithmetic)});
}

Result<RunFolder> OpenRunToResume(const std::string& run) {
  Result<RunFolder> folder = RunFolder::Open(run);
  if (folder.ok() || folder.error().code != ErrorCode::kNotFound) return folder;
  return MakeError(ErrorCode::kInvalidArgument,
                   "--resume: there is no commit in {}: there is no such folder; start a new run "
                   "without --resume",
                   run);
}

Status CheckResume(const ResumePoint& from, const TrainOptions& options, const TrainJob& job) {
  PENSTOCK_TRY(CheckIdentity(from, IdentityOf(options, job, "")));
  if (!job.config.aio.simulate) return {};
  return MakeError(ErrorCode::kInvalidArgument,
                   "--resume with penstock.aio.simulate: a simulated drive forgets the state; take "
                   "the key out, or start a new run");
}

/// The commit is of the last step already: all that may be missing is its row.
Status CloseCommitted(const ResumePoint& from, const RunFolder& folder) {
  PENSTOCK_TRY(folder.ResumeRows(from.train.step, from.row).status());
  LogNotice(fmt::format("step {} of {} is committed already: nothing is left to do",
                        from.train.step, folder.path()));
  PENSTOCK_ASSIGN(const bool summed_up, folder.HasSummary());
  if (!summed_up) {
    LogNotice(fmt::format("{} is not there: the program that trained last was cut off before it",
                          folder.SummaryPath()));
  }
  return {};
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

/// Continues training: in the files of the commit if it has closed them, else in new ones.
Status StartFrom(ResumePoint& from, const RunInfo& info, const Machine& machine,
                 const RunFolder& folder, const Interrupt& interrupt) {
  if (from.state != nullptr) {
    PENSTOCK_TRY(MoveState(from, *machine.session, folder, info,
                           [&interrupt] { return interrupt.requested(); }));
    LogNotice(fmt::format("the state was moved to {}", info.state.paths.front()));
    return {};
  }
  PENSTOCK_ASSIGN(const zero::TrainState state, machine.session->Adopt());
  if (state.step == from.train.step) return {};
  return MakeError(ErrorCode::kUnavailable,
                   "another process trained {} from step {} to {} meanwhile; resume again",
                   folder.path(), from.train.step, state.step);
}

void LogResume(const ResumePoint& from, const Machine& machine) {
  LogNotice(fmt::format("going on after step {}", from.train.step));
  if (from.info.version != PENSTOCK_VERSION) {
    LogNotice(
        fmt::format("the run was begun by penstock {}, and this is {}: the last bits may "
                    "differ from here on",
                    from.info.version, PENSTOCK_VERSION));
  }
  const std::string before = ArithmeticOf(from.identity);
  const std::string now = machine.operators->arithmetic();
  if (before == now) return;
  LogNotice(
      fmt::format("the run computed with {}, and here it computes with {}: the last bits may "
                  "differ from here on",
                  before, now));
}

Result<PreparedRun> PrepareNewRun(const TrainOptions& given, ModelFamilies families) {
  TrainOptions options = CompleteNew(given);
  PENSTOCK_ASSIGN(TrainJob job, PrepareJob(options, nullptr, families));
  auto interrupt = std::make_unique<Interrupt>(kInterruptNotice);
  PENSTOCK_ASSIGN(RunFolder folder, RunFolder::Create(options.out));
  PENSTOCK_ASSIGN(const StatePlan state, PlanNewState(job, folder));
  RunInfo info = InfoOf(options, job, state.files, state.files.uuid);
  // This comes before any file exists that a kill could leave behind.
  PENSTOCK_TRY(folder.WriteInfo(info));
  PENSTOCK_ASSIGN(Machine machine, CreateMachine(options, job, state));
  PENSTOCK_TRY(machine.session->Initialize(Interruptible(job.weights, *interrupt)));
  PENSTOCK_ASSIGN(MetricsWriter rows, folder.CreateRows());
  std::string identity = IdentityOf(options, job, machine.operators->arithmetic());
  return PreparedRun{.folder = std::move(folder),
                     .options = std::move(options),
                     .job = std::move(job),
                     .interrupt = std::move(interrupt),
                     .info = std::move(info),
                     .machine = std::move(machine),
                     .rows = std::move(rows),
                     .identity = std::move(identity)};
}

Result<std::optional<PreparedRun>> PrepareResumedRun(const TrainOptions& given,
                                                     ModelFamilies families) {
  PENSTOCK_ASSIGN(RunFolder folder, OpenRunToResume(given.out));
  PENSTOCK_ASSIGN(ResumePoint from, OpenResumePoint(folder.folder(), given.resume_from));
  TrainOptions options = CompleteFrom(from.info, given);
  PENSTOCK_ASSIGN(TrainJob job, PrepareJob(options, &from.train, families));
  PENSTOCK_TRY(CheckResume(from, options, job));
  auto interrupt = std::make_unique<Interrupt>(kInterruptNotice);
  RemoveUnfinishedSnapshots(folder.folder(), from.current().run_uuid);
  PENSTOCK_TRY(CompleteMove(from, folder));
  if (!from.replaced && from.train.step >= job.last_step) {
    PENSTOCK_TRY(CloseCommitted(from, folder));
    return std::optional<PreparedRun>();
  }
  PENSTOCK_ASSIGN(const StatePlan state, PlanStateAfter(from, job, folder));
  RunInfo info = InfoOf(options, job, state.files, from.current().run_uuid);
  if (!state.adopt) PENSTOCK_TRY(AnnounceMove(from, folder, state.files));
  PENSTOCK_ASSIGN(Machine machine, CreateMachine(options, job, state));
  LogResume(from, machine);
  PENSTOCK_TRY(StartFrom(from, info, machine, folder, *interrupt));
  PENSTOCK_ASSIGN(MetricsWriter rows, folder.ResumeRows(from.train.step, from.row));
  std::string identity = IdentityOf(options, job, machine.operators->arithmetic());
  return std::optional(PreparedRun{.folder = std::move(folder),
                                   .options = std::move(options),
                                   .job = std::move(job),
                                   .interrupt = std::move(interrupt),
                                   .info = std::move(info),
                                   .machine = std::move(machine),
                                   .rows = std::move(rows),
                                   .identity = std::move(identity)});
}

}  // namespace

Result<std::optional<PreparedRun>> PrepareRun(const TrainOptions& given, ModelFamilies families) {
  if (given.resumes()) return PrepareResumedRun(given, families);
  PENSTOCK_ASSIGN(PreparedRun run, PrepareNewRun(given, families));
  return std::optional(std::move(run));
}

}  // namespace penstock::train
