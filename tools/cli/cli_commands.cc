#include "tools/cli/cli_commands.h"

#include <fmt/format.h>

#include <memory>

#include "base/files.h"
#include "base/long_work.h"
#include "offload/whole_commit.h"
#include "run/leftovers.h"
#include "run/run_folder.h"
#include "tools/clean.h"
#include "tools/compare.h"
#include "tools/numerics_plot.h"
#include "tools/run_numerics.h"
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

}  // namespace

Result<std::string> RunExport(const ExportCommand& command) {
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

Result<std::string> RunNumericsCommand(const NumericsCommand& command) {
  PENSTOCK_ASSIGN(const RunNumerics numerics, ReadRunNumerics(command.run));
  if (!command.plot.empty()) {
    PENSTOCK_TRY(WriteTextFile(command.plot, PlotSvg(numerics), IfExists::kFail));
  }
  return ToTable(numerics);
}

Result<CompareOutcome> RunCompare(const CompareCommand& command) {
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
  PENSTOCK_ASSIGN(const Comparison comparison, std::move(compared));
  return CompareOutcome{.text = ToTable(comparison), .equal = comparison.equal()};
}

Result<std::string> RunClean(const CleanCommand& command) {
  PENSTOCK_ASSIGN(CleanPlan plan, PlanClean(command.run));
  if (command.yes) PENSTOCK_TRY(Clean(plan));
  return ToText(plan, command.yes);
}

}  // namespace penstock::train
