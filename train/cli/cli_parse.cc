#include "train/cli/cli_parse.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <optional>

#include "base/units.h"
#include "run/identity/run_changes.h"
#include "tools/cli/cli_auto.h"
#include "tools/cli/cli_checks.h"
#include "tools/cli/command_line.h"
#include "tools/cli/tool_parser.h"
#include "train/cli/cli_launch.h"
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
      ->check(OneOf({"cpu", "cuda", "auto"}))
      ->capture_default_str();
  train->add_option("--device-memory", arguments->device_memory, "64MiB, 1GiB or bytes")
      ->check(SizeCheck());
  train->add_option("--host-memory", arguments->host_memory, "64MiB, 1GiB or bytes")
      ->check(SizeCheck());
  train->add_option("--sequence-length", arguments->sequence_length, "tokens in a row")
      ->check(WholeCheck({.low = 1}));
  train->add_option("--data-order", arguments->data_order, "shuffle (default) or sequential")
      ->check(OneOf({"shuffle", "sequential"}));
  train->add_option("--init", arguments->init, "random: new weights, even if --model has some")
      ->check(OneOf({"random"}));
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

/// Some options need an existing run.
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
      ->check(OneOf({"fp32"}));
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

}  // namespace

Result<Command> ParseCommandLine(const std::vector<std::string>& arguments) {
  CLI::App app("Trains models whose states do not fit in device memory, from NVMe and host memory.",
               "penstock");
  Begin(app);
  TrainArguments train_arguments;
  const CLI::App* train = AddTrain(app, &train_arguments);
  const ToolParser tools(app);
  ReplayArguments replay_arguments;
  const CLI::App* replay = AddReplay(app, &replay_arguments);
  LaunchArguments launch_arguments;
  const CLI::App* launch = AddLaunch(app, &launch_arguments);
  // From "--" on, the line of a launch is that of its ranks.
  const auto end = !arguments.empty() && arguments[0] == "launch"
                       ? std::ranges::find(arguments, "--")
                       : arguments.end();
  const Result<std::optional<PrintText>> text = ReadArguments(app, {arguments.begin(), end});
  if (!text.ok() && launch->parsed() && end == arguments.end()) return NoRankCommand();
  PENSTOCK_TRY(text.status());
  if (text->has_value()) return Command(**text);
  if (train->parsed()) return MakeTrain(train_arguments);
  if (launch->parsed()) return MakeLaunch(launch_arguments, {end, arguments.end()});
  if (replay->parsed()) return MakeReplay(replay_arguments);
  PENSTOCK_ASSIGN(const std::optional<ToolCommand> tool, tools.Take());
  return Command(*tool);
}

}  // namespace penstock::train
