#include "train/cli/cli_launch.h"

#include <utility>
#include <variant>

#include "tools/cli/cli_checks.h"
#include "train/launch/hostfile.h"

namespace penstock::train {

CLI::App* AddLaunch(CLI::App& app, LaunchArguments* arguments) {
  constexpr uint64_t kMaxPort = 65535;
  LaunchCommand& options = arguments->options;
  CLI::App* launch =
      app.add_subcommand("launch", "Start several ranks of a training, here or on several hosts");
  launch->add_option("--ranks", arguments->ranks, "number of processes that share the training")
      ->required()
      ->check(WholeCheck({.low = 1, .high = kMaxRanks}));
  launch
      ->add_option("--hostfile", options.hostfile,
                   "hosts of the ranks: lines such as \"worker1 slots=8\" (default: this host)")
      ->check(NameCheck());
  launch
      ->add_option("--master-port", arguments->master_port,
                   "port of rank 0 (default: a free port; 29500 with --hostfile)")
      ->check(WholeCheck({.low = 1, .high = kMaxPort}));
  launch->footer(
      "The command of the ranks follows after --:\n"
      "  penstock launch --ranks 4 -- train --model M --config C --data D --out RUN");
  return launch;
}

Error NoRankCommand() {
  return MakeError(ErrorCode::kInvalidArgument,
                   "launch lacks the command of the ranks; write it after --, as in \"penstock "
                   "launch --ranks 4 -- train --model M\"");
}

Result<Command> MakeLaunch(const LaunchArguments& arguments, const std::vector<std::string>& rest) {
  LaunchCommand options = arguments.options;
  options.ranks = static_cast<uint32_t>(ParseWhole(arguments.ranks).value());  // checked
  if (!arguments.master_port.empty()) {
    options.master_port = static_cast<uint16_t>(ParseWhole(arguments.master_port).value());
  }
  if (rest.size() < 2) return NoRankCommand();
  options.arguments.assign(rest.begin() + 1, rest.end());
  if (options.arguments[0] != "train") {
    return MakeError(
        ErrorCode::kInvalidArgument,
        "launch: \"{}\" cannot run on several ranks; write train with its options after "
        "--",
        options.arguments[0]);
  }
  PENSTOCK_ASSIGN(Command command, ParseCommandLine(options.arguments));
  if (std::holds_alternative<ToolCommand>(command)) return command;
  return Command(std::move(options));
}

}  // namespace penstock::train
