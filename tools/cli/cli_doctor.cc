#include "tools/cli/cli_doctor.h"

#include <utility>

#include "tools/cli/cli_checks.h"

namespace penstock::train {

CLI::App* AddDoctor(CLI::App& app, DoctorArguments* arguments) {
  DoctorCommand& options = arguments->options;
  CLI::App* command = app.add_subcommand(
      "doctor", "Check this machine, and show what bounded a run; exit code 1 if a check fails");
  command->add_option("RUN", options.run, "folder of a run: show what bounded its steps")
      ->check(NameCheck());
  command
      ->add_option("--config", options.configs,
                   "JSON in DeepSpeed's format, to check on this machine; later files override")
      ->expected(1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->check(NameCheck());
  command->add_option("--nvme-path", options.nvme_path, "folder on a drive to check")
      ->check(NameCheck());
  command
      ->add_option("--bug-report", options.bug_report,
                   "write everything into one file; must not exist")
      ->check(NameCheck());
  AddRanks(*command, &arguments->ranks);
  return command;
}

Result<ToolCommand> MakeDoctor(const DoctorArguments& arguments) {
  DoctorCommand options = arguments.options;
  PENSTOCK_ASSIGN(const RankCounts counts, MakeRanks(arguments.ranks));
  if (counts.ranks > 1 && options.configs.empty()) {
    return MakeError(ErrorCode::kInvalidArgument, "--ranks needs a configuration; give --config");
  }
  options.ranks = counts.ranks;
  options.nodes = counts.nodes;
  return ToolCommand(std::move(options));
}

}  // namespace penstock::train
