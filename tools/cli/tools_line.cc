#include "tools/cli/tools_line.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/cli/command_line.h"
#include "tools/cli/tool_parser.h"
#include "train/process/log.h"

namespace penstock::train {
namespace {

constexpr std::array<std::string_view, 3> kElsewhere = {"train", "replay", "launch"};

Error IsElsewhere(const std::string& command) {
  return MakeError(
      ErrorCode::kInvalidArgument,
      "{} is not in the Python package, where torch computes the model; build penstock "
      "from its source, which has it (README.md, \"Install\")",
      command);
}

int RunArguments(const std::vector<std::string>& arguments) {
  if (!arguments.empty() && std::ranges::find(kElsewhere, arguments[0]) != kElsewhere.end()) {
    return ReportError(IsElsewhere(arguments[0]));
  }
  CLI::App app("Tools for runs, drives and plans, as they come with the Python package.",
               "penstock");
  Begin(app);
  std::optional<Result<ToolCommand>> tool;
  AddTools(app, [&tool](const Result<ToolCommand>& given) { tool = given; });
  app.footer("train, replay and launch are in a build of penstock's source.");
  const Result<std::optional<PrintText>> text = ReadArguments(app, arguments);
  if (!text.ok()) return ReportError(text.error());
  if (text->has_value()) return Print((*text)->text);
  return tool->ok() ? Execute(**tool) : ReportError(tool->error());
}

}  // namespace

int RunToolsLine(int argc, const char* const* argv) noexcept {
  return RunProgram([argc, argv] { return RunArguments({argv + std::min(argc, 1), argv + argc}); });
}

}  // namespace penstock::train
