// What a configuration asks of the machine, and whether the machine has it.
//
// Threads: any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "config/config.h"
#include "train/doctor/check.h"
#include "train/doctor/engine_checks.h"
#include "train/doctor/machine_files.h"

namespace penstock::train {

/// Reads the files as `train` does. Errors: of reading them; kInvalidArgument.
Result<std::vector<config::ConfigSource>> ReadConfigSources(const std::vector<std::string>& paths);

/// The check "config" alone, if the configuration is wrong.
Check ConfigCheck(const Result<config::Config>& config);

/// Holds a configuration against the machine, for so many ranks that share it.
Checks ConfigChecks(const config::Config& config, uint32_t ranks, const EngineFacts& engines,
                    const MachineFiles& files);

}  // namespace penstock::train
