#include "train/cli/cli_launch.h"

#include <variant>

#include "tools/cli/cli_options.h"
#include "train/launch/hostfile.h"

namespace penstock::train {
namespace {

Result<Command> WithRanks(LaunchCommand options, const std::vector<std::string>& rest) {
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

}  // namespace

void AddLaunch(CLI::App& app, const std::vector<std::string>& rest, const TakeCommand& take) {
  constexpr uint64_t kMaxPort = 65535;
  const auto [launch, options] = AddCommand<LaunchCommand>(
      app, "launch", "Start several ranks of a training, here or on several hosts",
      [rest, take](const LaunchCommand& filled) { take(WithRanks(filled, rest)); });
  AddWhole(*launch, "--ranks", &options->ranks, {.low = 1, .high = kMaxRanks},
           "number of processes that share the training")
      ->required();
  AddName(*launch, "--hostfile", &options->hostfile,
          "hosts of the ranks: lines such as \"worker1 slots=8\" (default: this host)");
  AddWhole(*launch, "--master-port", &options->master_port, {.low = 1, .high = kMaxPort},
           "port of rank 0 (default: a free port; 29500 with --hostfile)");
  launch->footer(
      "The command of the ranks follows after --:\n"
      "  penstock launch --ranks 4 -- train --model M --config C --data D --out RUN");
}

Error NoRankCommand() {
  return MakeError(ErrorCode::kInvalidArgument,
                   "launch lacks the command of the ranks; write it after --, as in \"penstock "
                   "launch --ranks 4 -- train --model M\"");
}

}  // namespace penstock::train
