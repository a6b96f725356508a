// One file with all that a bug report needs, and nothing of the environment that may be secret.
//
// Threads: any.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "config/config.h"

namespace penstock::train {

struct BugReport {
  std::string checks;  ///< as they were printed
  std::vector<config::ConfigSource> configs;
  std::string run;  ///< folder of a run; empty: none
};

/// Returns the text of the report. What cannot be read of the run is said in its place.
std::string ReportText(const BugReport& report);

/// Returns those variables of the environment that decide how a training runs, as "NAME=value".
std::vector<std::string> KnownVariables();

}  // namespace penstock::train
