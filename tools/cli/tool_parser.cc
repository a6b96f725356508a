#include "tools/cli/tool_parser.h"

#include <string>
#include <utility>

#include "tools/cli/cli_checks.h"
#include "tools/cli/cli_doctor.h"
#include "tools/cli/cli_plan.h"

namespace penstock::train {

/// What CLI11 fills in for `export`.
struct ExportArguments {
  ExportCommand options;
  std::string dtype = "fp32";
};

/// What CLI11 fills in for `tune`; the size still as text.
struct TuneArguments {
  TuneCommand options;
  std::string size;
};

namespace {

CLI::App* AddExport(CLI::App& app, ExportArguments* arguments) {
  CLI::App* command =
      app.add_subcommand("export", "Write the last commit as config.json and safetensors");
  command->add_option("RUN", arguments->options.run, "folder of the run")
      ->required()
      ->check(NameCheck());
  command->add_option("--to", arguments->options.to, "folder to write")
      ->required()
      ->check(NameCheck());
  command->add_option("--dtype", arguments->dtype, "fp32, bf16 or fp16")
      ->check(OneOf({"fp32", "bf16", "fp16"}))
      ->capture_default_str();
  return command;
}

ToolCommand MakeExport(const ExportArguments& arguments) {
  ExportCommand options = arguments.options;
  options.dtype = arguments.dtype == "bf16"   ? DType::kBFloat16
                  : arguments.dtype == "fp16" ? DType::kFloat16
                                              : DType::kFloat32;
  return options;
}

CLI::App* AddInspect(CLI::App& app, InspectCommand* options) {
  CLI::App* command =
      app.add_subcommand("inspect", "Show what is committed, and verify every checksum");
  command->add_option("RUN", options->run, "folder of the run")->required()->check(NameCheck());
  return command;
}

CLI::App* AddNumerics(CLI::App& app, NumericsCommand* options) {
  CLI::App* command =
      app.add_subcommand("numerics", "Show numerical problems of a run, and what to do");
  command->add_option("RUN", options->run, "folder of the run")->required()->check(NameCheck());
  command
      ->add_option("--plot", options->plot,
                   "write loss, norm, scale and headroom over steps as SVG; must not exist")
      ->check(NameCheck());
  return command;
}

CLI::App* AddTune(CLI::App& app, TuneArguments* arguments) {
  TuneCommand& options = arguments->options;
  CLI::App* command = app.add_subcommand("tune", "Find the best I/O settings for a drive");
  command->add_option("--nvme-path", options.nvme_path, "folder on the drive to measure")
      ->required()
      ->check(NameCheck());
  command->add_option("--size", arguments->size, "size of the test file (4GiB; --quick: 1GiB)")
      ->check(SizeCheck());
  command->add_option("--out", options.out, "write the config fragment; must not exist")
      ->check(NameCheck());
  command->add_option("--plot", options.plot, "write heat maps as SVG; must not exist")
      ->check(NameCheck());
  command->add_flag("--quick", options.quick, "a coarser grid, in less than 30 seconds");
  return command;
}

ToolCommand MakeTune(const TuneArguments& arguments) {
  TuneCommand options = arguments.options;
  options.size = SizeOrNone(arguments.size);
  return options;
}

CLI::App* AddCompare(CLI::App& app, CompareCommand* options) {
  CLI::App* command = app.add_subcommand(
      "compare", "List the differences of two models by tensor; exit code 1 if there are any");
  const char* kinds = "folder of a run, folder with safetensors, or safetensors file";
  command->add_option("A", options->a, kinds)->required()->check(NameCheck());
  command->add_option("B", options->b, kinds)->required()->check(NameCheck());
  return command;
}

CLI::App* AddClean(CLI::App& app, CleanCommand* options) {
  CLI::App* command = app.add_subcommand("clean", "Remove a run and its state");
  command->add_option("RUN", options->run, "folder of the run")->required()->check(NameCheck());
  command->add_flag("--yes", options->yes, "remove; without it, only list what would be removed");
  return command;
}

CLI::App* AddSnapshot(CLI::App& app, SnapshotCommand* options) {
  CLI::App* command = app.add_subcommand("snapshot", "Keep the last commit under a name");
  command->add_option("RUN", options->run, "folder of the run")->required()->check(NameCheck());
  command->add_option("NAME", options->name, "name of the snapshot")
      ->required()
      ->check(NameCheck());
  return command;
}

CLI::App* AddSnapshots(CLI::App& app, SnapshotsCommand* options) {
  CLI::App* command = app.add_subcommand("snapshots", "List the snapshots of a run");
  command->add_option("RUN", options->run, "folder of the run")->required()->check(NameCheck());
  return command;
}

}  // namespace

struct ToolParser::Arguments {
  explicit Arguments(CLI::App& app)
      : export_command(AddExport(app, &export_arguments)),
        compare(AddCompare(app, &compare_options)),
        clean(AddClean(app, &clean_options)),
        snapshot(AddSnapshot(app, &snapshot_options)),
        snapshots(AddSnapshots(app, &snapshots_options)),
        inspect(AddInspect(app, &inspect_options)),
        numerics(AddNumerics(app, &numerics_options)),
        tune(AddTune(app, &tune_arguments)),
        doctor(AddDoctor(app, &doctor_arguments)),
        plan(AddPlan(app, &plan_arguments)) {}

  ExportArguments export_arguments;
  CompareCommand compare_options;
  CleanCommand clean_options;
  SnapshotCommand snapshot_options;
  SnapshotsCommand snapshots_options;
  InspectCommand inspect_options;
  NumericsCommand numerics_options;
  TuneArguments tune_arguments;
  DoctorArguments doctor_arguments;
  PlanArguments plan_arguments;
  const CLI::App* const export_command;
  const CLI::App* const compare;
  const CLI::App* const clean;
  const CLI::App* const snapshot;
  const CLI::App* const snapshots;
  const CLI::App* const inspect;
  const CLI::App* const numerics;
  const CLI::App* const tune;
  const CLI::App* const doctor;
  const CLI::App* const plan;
};

ToolParser::ToolParser(CLI::App& app) : arguments_(std::make_unique<Arguments>(app)) {}

ToolParser::~ToolParser() = default;

Result<std::optional<ToolCommand>> ToolParser::Take() const {
  const Arguments& given = *arguments_;
  const auto some = [](ToolCommand command) { return std::optional(std::move(command)); };
  if (given.export_command->parsed()) return some(MakeExport(given.export_arguments));
  if (given.compare->parsed()) return some(given.compare_options);
  if (given.clean->parsed()) return some(given.clean_options);
  if (given.snapshot->parsed()) return some(given.snapshot_options);
  if (given.snapshots->parsed()) return some(given.snapshots_options);
  if (given.inspect->parsed()) return some(given.inspect_options);
  if (given.numerics->parsed()) return some(given.numerics_options);
  if (given.tune->parsed()) return some(MakeTune(given.tune_arguments));
  if (given.doctor->parsed()) {
    PENSTOCK_ASSIGN(ToolCommand command, MakeDoctor(given.doctor_arguments));
    return some(std::move(command));
  }
  if (given.plan->parsed()) {
    PENSTOCK_ASSIGN(ToolCommand command, MakePlan(given.plan_arguments));
    return some(std::move(command));
  }
  return std::optional<ToolCommand>();
}

}  // namespace penstock::train
