// The command line of `penstock plan`.
//
// Threads: the main thread.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "base/result.h"
#include "tools/cli/cli_auto.h"
#include "tools/cli/cli_ranks.h"
#include "tools/cli/tool_commands.h"

namespace penstock::train {

/// What CLI11 fills in for `plan`; numbers, sizes and names still as text.
struct PlanArguments {
  const CLI::App* plan = nullptr;  ///< says which options were given
  PlanCommand options;
  std::string device = "auto";
  RankArguments ranks;
  std::string device_memory;
  std::string host_memory;
  std::string sequence_length;
  std::string drive;
  std::string drive_capacity;
  std::string device_tflops;
  std::string link;
  std::string choose;
  std::string as;
  std::string topologies;
  std::string global_batch;
  std::string tensor_parallel;
  std::string tokens;
  std::string drive_rating;
  AutoArguments auto_flags;
};

CLI::App* AddPlan(CLI::App& app, PlanArguments* arguments);

/// Errors: kInvalidArgument for speeds that are none; those of CheckPlanOptions.
Result<ToolCommand> MakePlan(const PlanArguments& arguments);

}  // namespace penstock::train
