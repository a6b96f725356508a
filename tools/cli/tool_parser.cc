#include "tools/cli/tool_parser.h"

#include <utility>

#include "tools/cli/cli_machine.h"
#include "tools/cli/cli_options.h"
#include "tools/cli/cli_plan.h"

namespace penstock::train {
namespace {

/// Adds a tool whose options need no more than each for itself.
template <typename Tool>
std::pair<CLI::App*, Tool*> AddTool(CLI::App& app, const char* name, const char* help,
                                    const TakeTool& take) {
  return AddCommand<Tool>(app, name, help, [take](const Tool& tool) { take(ToolCommand(tool)); });
}

template <typename Target>
void AddRun(CLI::App& command, Target* run) {
  AddName(command, "RUN", run, "folder of the run")->required();
}

void AddExport(CLI::App& app, const TakeTool& take) {
  const auto [command, options] = AddTool<ExportCommand>(
      app, "export", "Write the last commit as config.json and safetensors", take);
  AddRun(*command, &options->run);
  AddName(*command, "--to", &options->to, "folder to write")->required();
  AddWord(*command, "--dtype", &options->dtype,
          {{"fp32", DType::kFloat32}, {"bf16", DType::kBFloat16}, {"fp16", DType::kFloat16}},
          "fp32, bf16 or fp16")
      ->default_str("fp32");
}

void AddCompare(CLI::App& app, const TakeTool& take) {
  const auto [command, options] = AddTool<CompareCommand>(
      app, "compare", "List the differences of two models by tensor; exit code 1 if there are any",
      take);
  const char* kinds = "folder of a run, folder with safetensors, or safetensors file";
  AddName(*command, "A", &options->a, kinds)->required();
  AddName(*command, "B", &options->b, kinds)->required();
}

void AddClean(CLI::App& app, const TakeTool& take) {
  const auto [command, options] =
      AddTool<CleanCommand>(app, "clean", "Remove a run and its state", take);
  AddRun(*command, &options->run);
  command->add_flag("--yes", options->yes, "remove; without it, only list what would be removed");
}

void AddSnapshots(CLI::App& app, const TakeTool& take) {
  const auto [keep, options] =
      AddTool<SnapshotCommand>(app, "snapshot", "Keep the last commit under a name", take);
  AddRun(*keep, &options->run);
  AddName(*keep, "NAME", &options->name, "name of the snapshot")->required();
  const auto [list, list_options] =
      AddTool<SnapshotsCommand>(app, "snapshots", "List the snapshots of a run", take);
  AddRun(*list, &list_options->run);
}

void AddInspect(CLI::App& app, const TakeTool& take) {
  const auto [command, options] = AddTool<InspectCommand>(
      app, "inspect", "Show what is committed, and verify every checksum", take);
  AddRun(*command, &options->run);
}

void AddNumerics(CLI::App& app, const TakeTool& take) {
  const auto [command, options] = AddTool<NumericsCommand>(
      app, "numerics", "Show numerical problems of a run, and what to do", take);
  AddRun(*command, &options->run);
  AddName(*command, "--plot", &options->plot,
          "write loss, norm, scale and headroom over steps as SVG; must not exist");
}

void AddTune(CLI::App& app, const TakeTool& take) {
  const auto [command, options] =
      AddTool<TuneCommand>(app, "tune", "Find the best I/O settings for a drive", take);
  AddName(*command, "--nvme-path", &options->nvme_path, "folder on the drive to measure")
      ->required();
  AddSize(*command, "--size", &options->size, "size of the test file (4GiB; --quick: 1GiB)");
  AddName(*command, "--out", &options->out, "write the config fragment; must not exist");
  AddName(*command, "--plot", &options->plot, "write heat maps as SVG; must not exist");
  command->add_flag("--quick", options->quick, "a coarser grid, in less than 30 seconds");
}

Result<ToolCommand> Checked(const DoctorCommand& options) {
  PENSTOCK_TRY(CheckRanks(options.ranks, options.nodes));
  if (options.ranks == 1 || !options.configs.empty()) return ToolCommand(options);
  return MakeError(ErrorCode::kInvalidArgument, "--ranks needs a configuration; give --config");
}

void AddDoctor(CLI::App& app, const TakeTool& take) {
  const auto [command, options] = AddCommand<DoctorCommand>(
      app, "doctor",
      "Check this machine, and show what bounded a run; exit code 1 if a check fails",
      [take](const DoctorCommand& filled) { take(Checked(filled)); });
  AddName(*command, "RUN", &options->run, "folder of a run: show what bounded its steps");
  AddNames(*command, "--config", &options->configs,
           "JSON in DeepSpeed's format, to check on this machine; later files override");
  AddName(*command, "--nvme-path", &options->nvme_path, "folder on a drive to check");
  AddName(*command, "--bug-report", &options->bug_report,
          "write everything into one file; must not exist");
  AddRanks(*command, &options->ranks, &options->nodes);
}

}  // namespace

void AddTools(CLI::App& app, const TakeTool& take) {
  AddExport(app, take);
  AddCompare(app, take);
  AddClean(app, take);
  AddSnapshots(app, take);
  AddInspect(app, take);
  AddNumerics(app, take);
  AddTune(app, take);
  AddDoctor(app, take);
  AddPlan(app, take);
}

}  // namespace penstock::train
