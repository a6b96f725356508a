// The JSON texts of runs in the C interface (docs/c_api.md, "Runs").
//
// Threads: any.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "front/commit_text.h"
#include "run/held_run.h"

namespace penstock::front {

/// Reads the options of penstock_open_run. Errors: kInvalidArgument, naming the key.
Result<train::RunRequest> ParseRunRequest(const std::string& text);

/// The options of penstock_create_in besides those of penstock_create.
struct TrainingInRun {
  Identity identity;
  std::optional<std::string> snapshot;  ///< folder of a run from whose commit to resume instead
  std::string rest;                     ///< the other options, as an object
};
/// Reads it. Errors: kInvalidArgument, naming the key.
Result<TrainingInRun> ParseTrainingInRun(const std::string& text);
/// Returns options with the run's folders and files.
std::string WithPlaces(const std::string& options, const std::vector<std::string>& folders,
                       const std::vector<std::string>& files);

/// Returns the text of penstock_describe_run and penstock_read_run.
std::string DescribeRun(const Folder& folder, const train::RunInfo& info,
                        const std::vector<std::string>& notices);

}  // namespace penstock::front
