#include "train/cli/cli.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "tools/cli/command_line.h"
#include "train/cli/cli_parse.h"
#include "train/process/log.h"

namespace penstock::train {
namespace {

int ExecuteHere(const TrainOptions& options) {
  const Result<std::optional<RunSummary>> outcome = Train(options);
  if (!outcome.ok()) return ReportError(outcome.error());
  const std::optional<RunSummary>& summary = *outcome;
  if (!summary.has_value()) return 0;
  const int printed = summary->shown ? Print(ToTable(*summary)) : 0;
  if (!summary->loop.interrupted) return printed;
  LogNotice(fmt::format("interrupted after step {}, which is committed", summary->loop.last_step));
  return ExitCode(ErrorCode::kCancelled);
}

int ExecuteHere(const ReplayCommand& options) {
  const Result<ReplayOutcome> outcome = RunReplay(options);
  if (!outcome.ok()) return ReportError(outcome.error());
  return PrintFinding(outcome->text, !outcome->equal);
}

int ExecuteHere(const LaunchCommand& options) {
  const Result<int> code = RunLaunch(options);
  return code.ok() ? *code : ReportError(code.error());
}

int ExecuteHere(const ToolCommand& tool) { return Execute(tool); }

}  // namespace

int RunCommandLine(int argc, const char* const* argv) noexcept {
  return RunProgram([argc, argv] {
    const Result<Command> command = ParseCommandLine({argv + std::min(argc, 1), argv + argc});
    if (!command.ok()) return ReportError(command.error());
    return std::visit([](const auto& options) { return ExecuteHere(options); }, *command);
  });
}

}  // namespace penstock::train
