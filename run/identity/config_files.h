// The configurations that a command was given by --config.
//
// Threads: any.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "config/config.h"

namespace penstock::train {

/// Reads files or pipes, in order. Errors: of reading them, with the name of the option.
Result<std::vector<config::ConfigSource>> ReadConfigFiles(const std::vector<std::string>& paths);

}  // namespace penstock::train
