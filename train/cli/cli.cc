#include "train/cli/cli.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <new>
#include <optional>

#include "base/message_text.h"
#include "tools/inspect.h"
#include "tools/snapshot_commands.h"
#include "train/cli/cli_commands.h"
#include "train/cli/cli_parse.h"
#include "train/process/log.h"

namespace penstock::train {
namespace {

/// The exit code of a comparison or a replay that found a difference, as of diff(1), and of a check
/// that failed.
constexpr int kDifferent = 1;

int Print(const std::string& text) {
  // Names of tensors and paths, which anybody may have made, stand in it.
  const bool written = std::fputs(Printable(text).c_str(), stdout) >= 0 && std::fflush(stdout) == 0;
  return written ? 0 : ReportError(MakeError(ErrorCode::kIo, "writing to stdout failed"));
}

int PrintOrReport(const Result<std::string>& text) {
  return text.ok() ? Print(*text) : ReportError(text.error());
}

int Execute(const TrainOptions& options) {
  const Result<std::optional<RunSummary>> outcome = Train(options);
  if (!outcome.ok()) return ReportError(outcome.error());
  const std::optional<RunSummary>& summary = *outcome;
  if (!summary.has_value()) return 0;
  const int printed = summary->shown ? Print(ToTable(*summary)) : 0;
  if (!summary->loop.interrupted) return printed;
  LogNotice(fmt::format("interrupted after step {}, which is committed", summary->loop.last_step));
  return ExitCode(ErrorCode::kCancelled);
}

int Execute(const ExportCommand& options) { return PrintOrReport(RunExport(options)); }

int Execute(const InspectCommand& options) {
  const Result<InspectOutcome> outcome = RunInspect(options.run);
  if (!outcome.ok()) return ReportError(outcome.error());
  const int printed = Print(outcome->text);
  return outcome->intact.ok() ? printed : ReportError(outcome->intact.error());
}

int Execute(const NumericsCommand& options) { return PrintOrReport(RunNumericsCommand(options)); }

int Execute(const ReplayCommand& options) {
  const Result<ReplayOutcome> outcome = RunReplay(options);
  if (!outcome.ok()) return ReportError(outcome.error());
  const int printed = Print(outcome->text);
  return printed == 0 && !outcome->equal ? kDifferent : printed;
}

int Execute(const TuneCommand& options) {
  const Result<TuneReport> report = RunTune(options);
  if (!report.ok() && report.error().code == ErrorCode::kCancelled) {
    LogNotice("interrupted: nothing is left on the drive, and no file was written");
    return ExitCode(ErrorCode::kCancelled);
  }
  if (!report.ok()) return ReportError(report.error());
  // Prints the results first, so that they are not lost if a file cannot be written.
  const int printed = Print(OutputText(options, *report));
  const Status written = WriteTuneFiles(options, *report);
  return written.ok() ? printed : ReportError(written.error());
}

int Execute(const CleanCommand& options) { return PrintOrReport(RunClean(options)); }

int Execute(const CompareCommand& options) {
  const Result<CompareOutcome> outcome = RunCompare(options);
  if (!outcome.ok()) return ReportError(outcome.error());
  const int printed = Print(outcome->text);
  return printed == 0 && !outcome->equal ? kDifferent : printed;
}

int Execute(const SnapshotCommand& options) {
  return PrintOrReport(RunSnapshot(options.run, options.name));
}
int Execute(const SnapshotsCommand& options) { return PrintOrReport(RunSnapshots(options.run)); }

int Execute(const LaunchCommand& options) {
  const Result<int> code = RunLaunch(options);
  return code.ok() ? *code : ReportError(code.error());
}

int Execute(const PlanCommand& options) { return PrintOrReport(MakePlanReport(options)); }

int Execute(const DoctorCommand& options) {
  const Result<DoctorOutcome> outcome = RunDoctor(options);
  if (!outcome.ok() && outcome.error().code == ErrorCode::kCancelled) {
    LogNotice("interrupted: nothing is left on the drive, and no file was written");
    return ExitCode(ErrorCode::kCancelled);
  }
  if (!outcome.ok()) return ReportError(outcome.error());
  const int printed = Print(outcome->text);
  return printed == 0 && outcome->failed ? kDifferent : printed;
}

int Execute(const PrintText& text) { return Print(text.text); }

int Run(int argc, const char* const* argv) {
  StartLogging();
  const Result<Command> command = ParseCommandLine({argv + std::min(argc, 1), argv + argc});
  if (!command.ok()) return ReportError(command.error());
  return std::visit([](const auto& options) { return Execute(options); }, *command);
}

}  // namespace

int RunCommandLine(int argc, const char* const* argv) noexcept {
  try {
    return Run(argc, argv);
  } catch (const std::bad_alloc&) {
    return ReportError(MakeError(ErrorCode::kOutOfMemory,
                                 "the machine has no memory left; lower --device-memory or "
                                 "--host-memory"));
  } catch (const std::exception& error) {
    return ReportError(
        MakeError(ErrorCode::kIo, "unexpected failure in a library: {}", error.what()));
  }
}

}  // namespace penstock::train
