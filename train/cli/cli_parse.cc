#include "train/cli/cli_parse.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iterator>
#include <optional>

#include "base/message_text.h"
#include "base/units.h"
#include "run/run_changes.h"
#include "train/cli/cli_auto.h"
#include "train/cli/cli_checks.h"
#include "train/cli/cli_doctor.h"
#include "train/cli/cli_launch.h"
#include "train/cli/cli_plan.h"
#include "train/process/log.h"

namespace penstock::train {
namespace {

/// What CLI11 fills in for `train`; numbers, sizes and names still as text.
struct TrainArguments {
  TrainOptions options;
  std::string steps;
  std::string seed;
  std::string sequence_length;
  std::string device = "auto";
  std::string data_order;
  std::string init;
  std::string device_memory;
  std::string host_memory;
  std::vector<std::string> changes;
  std::vector<std::string> skips;
  AutoArguments automatic;
};

CLI::App* AddTrain(CLI::App& app, TrainArguments* arguments) {
  TrainOptions& options = arguments->options;
  CLI::App* train = app.add_subcommand("train", "Train a model");
  train->add_option("--model", options.model, "config.json, or a folder that holds one")
      ->required()
      ->check(NameCheck());
  train->add_option("--config", options.configs, "JSON in DeepSpeed's format; later files override")
      ->required()
      ->expected(1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->check(NameCheck());
  train->add_option("--data", options.data, "text file or folder, .bin (uint16), .u32 (uint32)")
      ->required()
      ->check(NameCheck());
  train->add_option("--out", options.out, "folder of the run; must not exist, or --resume")
      ->required()
      ->check(NameCheck());
  train->add_option("--steps", arguments->steps, "number of the last step (default: one epoch)")
      ->check(WholeCheck());
  train->add_option("--seed", arguments->seed, "seed of weights and data order (default: 0)")
      ->check(WholeCheck());
  train->add_option("--device", arguments->device, "cpu, cuda or auto")
      ->check(CLI::IsMember({"cpu", "cuda", "auto"}))
      ->capture_default_str();
  train->add_option("--device-memory", arguments->device_memory, "64MiB, 1GiB or bytes")
      ->check(SizeCheck());
  train->add_option("--host-memory", arguments->host_memory, "64MiB, 1GiB or bytes")
      ->check(SizeCheck());
  train->add_option("--sequence-length", arguments->sequence_length, "tokens in a row")
      ->check(WholeCheck({.low = 1}));
  train->add_option("--data-order", arguments->data_order, "shuffle (default) or sequential")
      ->check(CLI::IsMember({"shuffle", "sequential"}));
  train->add_option("--init", arguments->init, "random: new weights, even if --model has some")
      ->check(CLI::IsMember({"random"}));
  train->add_flag("--resume", options.resume, "resume from the last commit");
  train->add_option("--resume-from", options.resume_from, "resume from a snapshot of the run")
      ->check(NameCheck());
  train
      ->add_option("--change", arguments->changes,
                   "KEY=VALUE: resume with another value of a config key, like "
                   "optimizer.params.lr=1e-4")
      ->expected(1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->check(NameCheck());
  train
      ->add_option("--skip-steps", arguments->skips,
                   "A:B: resume without computing steps A to B; their data is skipped")
      ->expected(1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->check(NameCheck());
  train->add_option("--trace", options.trace, "write a trace for Perfetto; must not exist")
      ->check(NameCheck());
  AddAutoFlags(*train, &arguments->automatic);
  return train;
}

/// Some options are for a run that is there already.
Status CheckResumes(const TrainOptions& options) {
  if (options.resumes() || (options.changes.empty() && options.skips.empty())) return {};
  return MakeError(ErrorCode::kInvalidArgument, "{} is for a resumed run; give --resume{}",
                   options.changes.empty() ? "--skip-steps" : "--change",
                   options.changes.empty() ? "" : ", or say it in --config");
}

Result<Command> MakeTrain(const TrainArguments& arguments) {
  TrainOptions options = arguments.options;
  options.steps = NumberOrNone(arguments.steps);
  options.seed = NumberOrNone(arguments.seed);
  options.sequence_length = NumberOrNone(arguments.sequence_length);
  options.device = arguments.device == "cpu"    ? DeviceChoice::kCpu
                   : arguments.device == "cuda" ? DeviceChoice::kCuda
                                                : DeviceChoice::kAuto;
  if (!arguments.data_order.empty()) {
    options.data_order =
        arguments.data_order == "sequential" ? DataOrder::kSequential : DataOrder::kShuffle;
  }
  PENSTOCK_ASSIGN(options.changes, ParseChanges(arguments.changes));
  PENSTOCK_ASSIGN(options.skips, ParseSkips(arguments.skips));
  PENSTOCK_TRY(CheckResumes(options));
  PENSTOCK_ASSIGN(options.auto_flags, MakeAutoFlags(arguments.automatic));
  options.init_random = arguments.init == "random";
  options.device_memory = SizeOrNone(arguments.device_memory);
  options.host_memory = SizeOrNone(arguments.host_memory);
  return Command(std::move(options));
}

/// What CLI11 fills in for `export`.
struct ExportArguments {
  ExportCommand options;
  std::string dtype = "fp32";
};

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
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}))
      ->capture_default_str();
  return command;
}

Command MakeExport(const ExportArguments& arguments) {
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

/// What CLI11 fills in for `replay`; numbers still as text.
struct ReplayArguments {
  ReplayCommand options;
  std::string to;
  std::string dtype;
  std::string device_memory;
  std::string host_memory;
};

CLI::App* AddReplay(CLI::App& app, ReplayArguments* arguments) {
  ReplayCommand& options = arguments->options;
  CLI::App* command = app.add_subcommand(
      "replay",
      "Recompute steps of a run, and name the cause of a failure; exit code 1 if rows differ");
  command->add_option("RUN", options.run, "folder of the run")->required()->check(NameCheck());
  command
      ->add_option("--from", options.from,
                   "latest (or its step): the newest commit; or the name of a snapshot")
      ->required()
      ->check(NameCheck());
  command->add_option("--to", arguments->to, "number of the last step")
      ->required()
      ->check(WholeCheck({.low = 1, .high = kLastStepNumber}));
  command->add_option("--dtype", arguments->dtype, "fp32: compute in fp32 (default: as the run)")
      ->check(CLI::IsMember({"fp32"}));
  command
      ->add_option("--scratch", options.scratch,
                   "folder for the replay's state, which is removed at the end (default: RUN)")
      ->check(NameCheck());
  command->add_option("--device-memory", arguments->device_memory, "64MiB, 1GiB or bytes")
      ->check(SizeCheck());
  command->add_option("--host-memory", arguments->host_memory, "64MiB, 1GiB or bytes")
      ->check(SizeCheck());
  return command;
}

Command MakeReplay(const ReplayArguments& arguments) {
  ReplayCommand options = arguments.options;
  options.to = ParseWhole(arguments.to).value();  // checked
  options.fp32 = !arguments.dtype.empty();
  options.device_memory = SizeOrNone(arguments.device_memory);
  options.host_memory = SizeOrNone(arguments.host_memory);
  return options;
}

/// What CLI11 fills in for `tune`; the size still as text.
struct TuneArguments {
  TuneCommand options;
  std::string size;
};

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

bool HasCommand(CLI::App& app, const std::string& name) {
  return std::ranges::any_of(app.get_subcommands({}), [&name](const CLI::App* command) {
    return command->get_name() == name;
  });
}

/// The first option that the command does not have, or nothing.
std::string UnknownOption(const CLI::App& app) {
  for (const std::string& word : app.remaining(true)) {
    if (word == "--") break;
    if (word.starts_with('-') && word.size() > 1) return word;
  }
  return "";
}

}  // namespace

Result<Command> ParseCommandLine(const std::vector<std::string>& arguments) {
  CLI::App app("Trains models whose states do not fit in device memory, from NVMe and host memory.",
               "penstock");
  app.set_version_flag("--version", "penstock " PENSTOCK_VERSION);
  app.require_subcommand(1);
  TrainArguments train_arguments;
  ExportArguments export_arguments;
  InspectCommand inspect_options;
  TuneArguments tune_arguments;
  CompareCommand compare_options;
  CleanCommand clean_options;
  const CLI::App* train = AddTrain(app, &train_arguments);
  const CLI::App* export_command = AddExport(app, &export_arguments);
  const CLI::App* compare = AddCompare(app, &compare_options);
  const CLI::App* clean = AddClean(app, &clean_options);
  SnapshotCommand snapshot_options;
  SnapshotsCommand snapshots_options;
  const CLI::App* snapshot = AddSnapshot(app, &snapshot_options);
  const CLI::App* snapshots = AddSnapshots(app, &snapshots_options);
  AddInspect(app, &inspect_options);
  NumericsCommand numerics_options;
  const CLI::App* numerics = AddNumerics(app, &numerics_options);
  ReplayArguments replay_arguments;
  const CLI::App* replay = AddReplay(app, &replay_arguments);
  const CLI::App* tune = AddTune(app, &tune_arguments);
  LaunchArguments launch_arguments;
  const CLI::App* launch = AddLaunch(app, &launch_arguments);
  DoctorArguments doctor_arguments;
  const CLI::App* doctor = AddDoctor(app, &doctor_arguments);
  PlanArguments plan_arguments;
  const CLI::App* plan = AddPlan(app, &plan_arguments);
  if (!arguments.empty() && !arguments[0].starts_with('-') && !HasCommand(app, arguments[0])) {
    return MakeError(
        ErrorCode::kInvalidArgument,
        "unknown command {}; there are train, plan, export, inspect, numerics, replay, "
        "compare, snapshot, snapshots, clean, tune, launch and doctor",
        arguments[0]);
  }
  // From "--" on, the line of a launch is that of its ranks.
  const auto end = !arguments.empty() && arguments[0] == "launch"
                       ? std::ranges::find(arguments, "--")
                       : arguments.end();
  try {
    std::vector<std::string> reversed(std::make_reverse_iterator(end), arguments.rend());
    app.parse(reversed);
  } catch (const CLI::CallForHelp&) {
    return Command(PrintText{app.help()});
  } catch (const CLI::CallForVersion& version) {
    return Command(PrintText{std::string(version.what()) + "\n"});
  } catch (const CLI::ParseError& error) {
    if (launch->parsed() && end == arguments.end()) return NoRankCommand();
    // An unknown option comes before what is missing, which may be what was meant by it.
    const std::string unknown = UnknownOption(app);
    const auto commands = app.get_subcommands();
    return MakeError(ErrorCode::kInvalidArgument, "{}; penstock {}--help lists the options",
                     unknown.empty() ? MessageLine(error.what()) : "unknown option " + unknown,
                     commands.empty() ? "" : commands.front()->get_name() + " ");
  }
  if (tune->parsed()) {
    tune_arguments.options.size = SizeOrNone(tune_arguments.size);
    return Command(tune_arguments.options);
  }
  if (train->parsed()) return MakeTrain(train_arguments);
  if (doctor->parsed()) return MakeDoctor(doctor_arguments);
  if (launch->parsed()) return MakeLaunch(launch_arguments, {end, arguments.end()});
  if (plan->parsed()) return MakePlan(plan_arguments);
  if (export_command->parsed()) return MakeExport(export_arguments);
  if (numerics->parsed()) return Command(numerics_options);
  if (replay->parsed()) return MakeReplay(replay_arguments);
  if (compare->parsed()) return Command(compare_options);
  if (clean->parsed()) return Command(clean_options);
  if (snapshot->parsed()) return Command(snapshot_options);
  if (snapshots->parsed()) return Command(snapshots_options);
  return Command(inspect_options);
}

}  // namespace penstock::train
