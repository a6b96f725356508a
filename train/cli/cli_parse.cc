#include "train/cli/cli_parse.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <optional>

#include "base/units.h"
#include "run/identity/run_changes.h"
#include "tools/cli/cli_auto.h"
#include "tools/cli/cli_machine.h"
#include "tools/cli/cli_options.h"
#include "tools/cli/command_line.h"
#include "tools/cli/tool_parser.h"
#include "train/cli/cli_launch.h"

namespace penstock::train {
namespace {

/// The options of `train`, and texts whose mistakes are found among all of them.
struct TrainLine {
  TrainOptions options;
  std::vector<std::string> changes;
  std::vector<std::string> skips;
};

/// Some options need an existing run.
Status CheckResumes(const TrainLine& line) {
  if (line.options.resumes() || (line.changes.empty() && line.skips.empty())) return {};
  return MakeError(ErrorCode::kInvalidArgument, "{} is for a resumed run; give --resume{}",
                   line.changes.empty() ? "--skip-steps" : "--change",
                   line.changes.empty() ? "" : ", or say it in --config");
}

Result<Command> MakeTrain(const TrainLine& line) {
  TrainOptions options = line.options;
  PENSTOCK_ASSIGN(options.changes, ParseChanges(line.changes));
  PENSTOCK_ASSIGN(options.skips, ParseSkips(line.skips));
  PENSTOCK_TRY(CheckResumes(line));
  return Command(std::move(options));
}

void AddFiles(CLI::App& train, TrainOptions* options) {
  AddName(train, "--model", &options->model, "config.json, or a folder that holds one")->required();
  AddNames(train, "--config", &options->configs, "JSON in DeepSpeed's format; later files override")
      ->required();
  AddName(train, "--data", &options->data, "text file or folder, .bin (uint16), .u32 (uint32)")
      ->required();
  AddName(train, "--out", &options->out, "folder of the run; must not exist, or --resume")
      ->required();
}

void AddTrain(CLI::App& app, const TakeCommand& take) {
  const auto [train, line] = AddCommand<TrainLine>(
      app, "train", "Train a model", [take](const TrainLine& filled) { take(MakeTrain(filled)); });
  TrainOptions& options = line->options;
  AddFiles(*train, &options);
  AddWhole(*train, "--steps", &options.steps, {}, "number of the last step (default: one epoch)");
  AddWhole(*train, "--seed", &options.seed, {}, "seed of weights and data order (default: 0)");
  AddDevice(*train, &options.device);
  AddMemory(*train, &options.device_memory, &options.host_memory);
  AddWhole(*train, "--sequence-length", &options.sequence_length, {.low = 1}, "tokens in a row");
  AddWord(*train, "--data-order", &options.data_order,
          {{"shuffle", DataOrder::kShuffle}, {"sequential", DataOrder::kSequential}},
          "shuffle (default) or sequential");
  AddWord(*train, "--init", &options.init_random, {{"random", true}},
          "random: new weights, even if --model has some");
  train->add_flag("--resume", options.resume, "resume from the last commit");
  AddName(*train, "--resume-from", &options.resume_from, "resume from a snapshot of the run");
  AddNames(*train, "--change", &line->changes,
           "KEY=VALUE: resume with another value of a config key, like "
           "optimizer.params.lr=1e-4");
  AddNames(*train, "--skip-steps", &line->skips,
           "A:B: resume without computing steps A to B; their data is skipped");
  AddName(*train, "--trace", &options.trace, "write a trace for Perfetto; must not exist");
  AddAutoFlags(*train, &options.auto_flags);
}

void AddReplay(CLI::App& app, const TakeCommand& take) {
  const auto [command, options] = AddCommand<ReplayCommand>(
      app, "replay",
      "Recompute steps of a run, and name the cause of a failure; exit code 1 if rows differ",
      [take](const ReplayCommand& filled) { take(Command(filled)); });
  AddName(*command, "RUN", &options->run, "folder of the run")->required();
  AddName(*command, "--from", &options->from,
          "latest (or its step): the newest commit; or the name of a snapshot")
      ->required();
  AddWhole(*command, "--to", &options->to, {.low = 1, .high = kLastStepNumber},
           "number of the last step")
      ->required();
  AddWord(*command, "--dtype", &options->fp32, {{"fp32", true}},
          "fp32: compute in fp32 (default: as the run)");
  AddName(*command, "--scratch", &options->scratch,
          "folder for the replay's state, which is removed at the end (default: RUN)");
  AddMemory(*command, &options->device_memory, &options->host_memory);
}

}  // namespace

Result<Command> ParseCommandLine(const std::vector<std::string>& arguments) {
  CLI::App app("Trains models whose states do not fit in device memory, from NVMe and host memory.",
               "penstock");
  Begin(app);
  // From "--" on, the line of a launch is that of its ranks.
  const auto end = !arguments.empty() && arguments[0] == "launch"
                       ? std::ranges::find(arguments, "--")
                       : arguments.end();
  std::optional<Result<Command>> command;
  const TakeCommand take = [&command](const Result<Command>& given) { command = given; };
  AddTrain(app, take);
  AddTools(app, [&take](const Result<ToolCommand>& tool) {
    take(tool.ok() ? Result<Command>(*tool) : tool.error());
  });
  AddReplay(app, take);
  AddLaunch(app, {end, arguments.end()}, take);
  const Result<std::optional<PrintText>> text = ReadArguments(app, {arguments.begin(), end});
  if (!text.ok() && app.got_subcommand("launch") && end == arguments.end()) return NoRankCommand();
  PENSTOCK_TRY(text.status());
  if (text->has_value()) return Command(**text);
  return *command;
}

}  // namespace penstock::train
