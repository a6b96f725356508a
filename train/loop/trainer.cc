#include "train/loop/trainer.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <utility>

#include "train/loop/progress.h"
#include "train/loop/trainer_job.h"
#include "train/loop/trainer_loop.h"
#include "train/loop/trainer_machine.h"
#include "train/process/interrupt.h"
#include "train/process/log.h"
#include "train/run/resume.h"
#include "train/run/run_folder.h"
#include "train/run/run_identity.h"
#include "train/run/snapshot.h"
#include "train/run/snapshot_service.h"

namespace penstock::train {
namespace {

constexpr uint64_t kDefaultStepsPerPrint = 10;

RunInfo InfoOf(const TrainOptions& options, const TrainJob& job, const StateFiles& state,
               const std::optional<ResumePoint>& from) {
  return {.version = PENSTOCK_VERSION,
          .run_uuid = from ? from->current().run_uuid : state.uuid,
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

/// `options` with what they leave open: what the run was started with, or the defaults.
TrainOptions Complete(TrainOptions options, const std::optional<ResumePoint>& from) {
  if (from.has_value()) {
    const DataOrder order = from->info.data_order == ToString(DataOrder::kSequential)
                                ? DataOrder::kSequential
                                : DataOrder::kShuffle;
    options.seed = options.seed.value_or(from->info.seed);
    options.data_order = options.data_order.value_or(order);
    options.sequence_length = options.sequence_length.value_or(from->info.sequence_length);
  }
  options.seed = options.seed.value_or(0);
  options.data_order = options.data_order.value_or(DataOrder::kShuffle);
  return options;
}

Status CheckResume(const ResumePoint& from, const TrainOptions& options, const TrainJob& job) {
  PENSTOCK_TRY(CheckIdentity(from, IdentityOf(options, job, "")));
  if (!job.config.aio.simulate) return {};
  return MakeError(ErrorCode::kInvalidArgument,
                   "--resume with penstock.aio.simulate: a simulated drive forgets the state; take "
                   "the key out, or start a new run");
}

/// The commit is of the last step already: all that may be missing is its row.
Status FinishRun(const ResumePoint& from, const RunFolder& folder) {
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

/// Whether the run is whole, as far as that can be seen: a training ends for what is gone, and not
/// for a file system that does not answer for a while.
Status CheckThere(const RunFolder& folder) {
  Status whole = folder.CheckWhole();
  if (whole.ok() || whole.error().code == ErrorCode::kNotFound) return whole;
  LogNotice(
      fmt::format("whether {} is whole cannot be seen: {}", folder.path(), whole.error().message));
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

ModelCost CostOf(const TrainJob& job, const offload::ShardLayout& layout) {
  const ModelSizes sizes = job.model.description->sizes();
  return {.parameters = layout.model.parameters,
          .layers = sizes.layers,
          .width = sizes.width,
          .sequence = job.shape.sequence};
}

LoopOptions MakeLoopOptions(const TrainJob& job, const Machine& machine, std::string run_json) {
  return {.config = job.config,
          .shape = job.shape,
          .cost = CostOf(job, machine.session->layout()),
          .last_step = job.last_step,
          .run_json = std::move(run_json)};
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
          .cost = CostOf(job, machine.session->layout()),
          .device_memory = job.budget.device,
          .host_memory = job.budget.host,
          .aio_engine = machine.session->aio_engine(),
          .device = device::ToString(job.device),
          .device_name = machine.device->name(),
          .seed = *options.seed,
          .config = job.config,
          .layout = machine.session->layout()};
}

Status FinishTrace(Trace& trace, const LoopSummary& loop) {
  trace.Keep();
  const Status finished = trace.Finish();
  if (finished.ok()) return {};
  return MakeError(finished.error().code,
                   "{}; the training is complete, and step {} is committed; the trace is not",
                   finished.error().message, loop.committed_step);
}

std::optional<std::string> ReadEnvironment(const std::string& name) {
  // Nothing here changes the environment.
  const char* value = std::getenv(name.c_str());  // NOLINT(concurrency-mt-unsafe)
  if (value == nullptr) return std::nullopt;
  return std::string(value);
}

/// Training begins: a new state.
Status StartNew(const TrainJob& job, const Machine& machine, const Interrupt& interrupt) {
  return machine.session->Initialize(Interruptible(job.weights, interrupt));
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

Result<RunFolder> OpenRunToResume(const std::string& run) {
  Result<RunFolder> folder = RunFolder::Open(run);
  if (folder.ok() || folder.error().code != ErrorCode::kNotFound) return folder;
  return MakeError(ErrorCode::kInvalidArgument,
                   "--resume: there is no commit in {}: there is no such folder; start a new run "
                   "without --resume",
                   run);
}

}  // namespace

Result<std::optional<RunSummary>> Train(const TrainOptions& given, ModelFamilies families) {
  PENSTOCK_TRY(CheckOneRank(ReadEnvironment));
  std::optional<RunFolder> folder;
  std::optional<ResumePoint> from;
  if (given.resumes()) {
    Result<RunFolder> opened = OpenRunToResume(given.out);
    PENSTOCK_TRY(opened.status());
    folder.emplace(*std::move(opened));
    PENSTOCK_ASSIGN(from, OpenResumePoint(folder->folder(), given.resume_from));
  }
  const TrainOptions options = Complete(given, from);
  PENSTOCK_ASSIGN(TrainJob job, PrepareJob(options, from ? &from->train : nullptr, families));
  if (from) PENSTOCK_TRY(CheckResume(*from, options, job));
  const Interrupt interrupt(
      "penstock: finishing this step and committing; interrupt again to quit at once");
  if (!from) {
    Result<RunFolder> created = RunFolder::Create(options.out);
    PENSTOCK_TRY(created.status());
    folder.emplace(*std::move(created));
  } else {
    RemoveUnfinishedSnapshots(folder->folder(), from->current().run_uuid);
    PENSTOCK_TRY(CompleteMove(*from, *folder));
    if (!from->replaced && from->train.step >= job.last_step) {
      PENSTOCK_TRY(FinishRun(*from, *folder));
      return std::optional<RunSummary>();
    }
  }
  PENSTOCK_ASSIGN(const StatePlan state, PlanState(job, *folder, from));
  const RunInfo info = InfoOf(options, job, state.files, from);
  // This comes before any file exists that a kill could leave behind.
  if (!from) PENSTOCK_TRY(folder->WriteInfo(info));
  if (from && !state.adopt) PENSTOCK_TRY(AnnounceMove(*from, *folder, state.files));
  PENSTOCK_ASSIGN(Machine machine, CreateMachine(options, job, state));
  if (from) LogResume(*from, machine);
  PENSTOCK_TRY(from ? StartFrom(*from, info, machine, *folder, interrupt)
                    : StartNew(job, machine, interrupt));
  PENSTOCK_ASSIGN(MetricsWriter metrics,
                  from ? folder->ResumeRows(from->train.step, from->row) : folder->CreateRows());
  SnapshotService snapshots(folder->folder(), info, job.config.durable,
                            [&interrupt] { return interrupt.requested(); });
  PENSTOCK_TRY(folder->Watch());
  Progress progress(ProgressOptions(job));
  TrainLoop loop(
      {.session = *machine.session,
       .model = *machine.model,
       .data = job.data,
       .device = *machine.device,
       .meter = *machine.meter,
       .metrics = metrics,
       .progress = progress,
       .stop_requested = [&interrupt] { return interrupt.requested(); },
       .keep_folder =
           [&] {
             folder->Keep();
             if (machine.trace) machine.trace->Keep();
           },
       .check_folder = [&] { return CheckThere(*folder); },
       .snapshots = &snapshots},
      MakeLoopOptions(job, machine, IdentityOf(options, job, machine.operators->arithmetic())));
  PENSTOCK_ASSIGN(const LoopSummary done, loop.Run());
  progress.Finish();
  RunSummary summary = Summarise(options, job, machine, done);
  const Status written = folder->WriteSummary(ToJson(summary));
  const Status whole = CheckThere(*folder);
  if (!whole.ok()) {
    return MakeError(whole.error().code, "{}; {}", whole.error().message,
                     CommittedIn(done.committed_step, *machine.session, whole.error()));
  }
  if (!written.ok()) {
    return MakeError(written.error().code, "{}; step {} is committed, only summary.json is missing",
                     written.error().message, done.committed_step);
  }
  if (machine.trace) PENSTOCK_TRY(FinishTrace(*machine.trace, done));
  return std::optional(std::move(summary));
}

}  // namespace penstock::train
