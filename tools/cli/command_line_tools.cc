// Carries out each tool: runs it, prints what it found, and makes the exit code of it.
#include "tools/cli/command_line.h"

#include <fmt/format.h>

#include <memory>

#include "base/files.h"
#include "base/long_work.h"
#include "offload/whole_commit.h"
#include "run/leftovers.h"
#include "run/run_folder.h"
#include "tools/clean.h"
#include "tools/compare.h"
#include "tools/inspect.h"
#include "tools/numerics_plot.h"
#include "tools/run_numerics.h"
#include "tools/snapshot_commands.h"
#include "train/models/registry.h"
#include "train/process/interrupt.h"
#include "train/process/log.h"
#include "train/process/watched_read.h"
#include "train/weights/committed_model.h"
#include "train/weights/export.h"
#include "zero/states/committed_state.h"

namespace penstock::train {
namespace {

/// Weights that no healthy training has may not be meant for an export.
void LogHealth(const ExportCommand& command, const zero::TrainState& committed,
               const std::vector<zero::ValueFault>& faults) {
  if (!faults.empty()) {
    LogNotice(
        fmt::format("step {} of {} has {} tensor{} with weights that are not finite or beyond "
                    "{:g}, exported unchanged; penstock inspect lists them; the first is {}",
                    committed.step, command.run, faults.size(), faults.size() == 1 ? "" : "s",
                    zero::kLargeWeight, ToText(faults.front())));
  }
  if (committed.skipped_in_a_row > 0) {
    LogNotice(
        fmt::format("the last {} steps before step {} of {} were skipped, because losses or "
                    "gradients were not finite",
                    committed.skipped_in_a_row, committed.step + 1, command.run));
  }
}

Result<std::string> Export(const ExportCommand& command) {
  PENSTOCK_ASSIGN(const RunInfo info, ReadCommittedInfo(command.run));
  PENSTOCK_ASSIGN(const std::unique_ptr<zero::CommittedState> state, OpenCommit(info, command.run));
  const Interrupt interrupt(
      "penstock: removing what was exported so far; interrupt again to quit at once");
  ExportOptions options;
  options.folder = command.to;
  if (info.kind == RunKind::kTrain) {
    PENSTOCK_ASSIGN(const ParsedModel model, ParseModel(info.training.model_json, "of run.json"));
    options.family = model.family;
    options.config_json = info.training.model_json;
  }
  options.dtype = command.dtype;
  options.stop_requested = [&interrupt] { return interrupt.requested(); };
  LongWork work("exporting " + command.run, LogNotice);
  options.progress = [&work](uint64_t done, uint64_t all) {
    work.Note(static_cast<double>(done), static_cast<double>(all));
  };
  Result<ExportReport> exported = ExportModel(*state, options);
  if (offload::MayUseOther(exported.status(), state->commits())) {
    PENSTOCK_ASSIGN(const std::string left,
                    offload::UseWholeCommit(
                        *state, WatchedRead("verifying the commit of " + command.run, interrupt,
                                            "interrupted: what was exported so far is removed")));
    if (!left.empty()) {
      LogNotice(left);
      PENSTOCK_TRY(CheckInfo(info, *state));
      exported = ExportModel(*state, options);
    }
  }
  PENSTOCK_ASSIGN(const ExportReport report, std::move(exported));
  LogHealth(command, state->train_state(), report.faults);
  return fmt::format("step {} of {}: {} parameters as {}, {} in {} file(s) in {}\n",
                     state->train_state().step, command.run, report.elements,
                     ToString(command.dtype), ToString(report.tensor_bytes), report.files.size(),
                     command.to);
}

/// An interrupted command has its own line, and is no error.
int ReportOrCancelled(const Error& error) {
  if (error.code != ErrorCode::kCancelled) return ReportError(error);
  LogNotice("interrupted: nothing is left on the drive, and no file was written");
  return ExitCode(error.code);
}

int PrintOrReport(const Result<std::string>& text) {
  return text.ok() ? Print(*text) : ReportError(text.error());
}

int ExecuteTool(const ExportCommand& options) { return PrintOrReport(Export(options)); }

int ExecuteTool(const InspectCommand& options) {
  const Result<InspectOutcome> outcome = RunInspect(options.run);
  if (!outcome.ok()) return ReportError(outcome.error());
  const int printed = Print(outcome->text);
  return outcome->intact.ok() ? printed : ReportError(outcome->intact.error());
}

int ExecuteTool(const NumericsCommand& options) {
  const Result<RunNumerics> numerics = ReadRunNumerics(options.run);
  if (!numerics.ok()) return ReportError(numerics.error());
  if (!options.plot.empty()) {
    const Status written = WriteTextFile(options.plot, PlotSvg(*numerics), IfExists::kFail);
    if (!written.ok()) return ReportError(written.error());
  }
  return Print(ToTable(*numerics));
}

int ExecuteTool(const TuneCommand& options) {
  const Result<TuneReport> report = RunTune(options);
  if (!report.ok()) return ReportOrCancelled(report.error());
  // Prints the results first, so that they are not lost if a file cannot be written.
  const int printed = Print(OutputText(options, *report));
  const Status written = WriteTuneFiles(options, *report);
  return written.ok() ? printed : ReportError(written.error());
}

int ExecuteTool(const CleanCommand& options) {
  Result<CleanPlan> plan = PlanClean(options.run);
  if (!plan.ok()) return ReportError(plan.error());
  const Status cleaned = options.yes ? Clean(*plan) : Status();
  return cleaned.ok() ? Print(ToText(*plan, options.yes)) : ReportError(cleaned.error());
}

Result<Comparison> CompareModels(const CompareCommand& command) {
  PENSTOCK_ASSIGN(const std::unique_ptr<ComparedModel> a, ComparedModel::Open(command.a));
  PENSTOCK_ASSIGN(const std::unique_ptr<ComparedModel> b, ComparedModel::Open(command.b));
  Result<Comparison> compared = Compare(*a, *b);
  if (offload::IsDamage(compared.status())) {
    bool others = false;
    for (ComparedModel* const side : {a.get(), b.get()}) {
      PENSTOCK_ASSIGN(const std::string left, side->UseWholeCommit());
      if (left.empty()) continue;
      LogNotice(left);
      others = true;
    }
    if (others) compared = Compare(*a, *b);
  }
  return compared;
}

int ExecuteTool(const CompareCommand& options) {
  const Result<Comparison> comparison = CompareModels(options);
  if (!comparison.ok()) return ReportError(comparison.error());
  return PrintFinding(ToTable(*comparison), !comparison->equal());
}

int ExecuteTool(const SnapshotCommand& options) {
  return PrintOrReport(RunSnapshot(options.run, options.name));
}

int ExecuteTool(const SnapshotsCommand& options) {
  return PrintOrReport(RunSnapshots(options.run));
}

int ExecuteTool(const PlanCommand& options) { return PrintOrReport(MakePlanReport(options)); }

int ExecuteTool(const DoctorCommand& options) {
  const Result<DoctorOutcome> outcome = RunDoctor(options);
  if (!outcome.ok()) return ReportOrCancelled(outcome.error());
  return PrintFinding(outcome->text, outcome->failed);
}

int ExecuteTool(const PrintText& text) { return Print(text.text); }

}  // namespace

int Execute(const ToolCommand& command) {
  return std::visit([](const auto& options) { return ExecuteTool(options); }, command);
}

}  // namespace penstock::train
