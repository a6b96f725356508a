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
#include "device/device.h"
#include "train/doctor/check.h"
#include "train/doctor/engine_checks.h"
#include "train/doctor/machine_files.h"

namespace penstock::train {

/// The check "config" alone, if the configuration is wrong.
Check ConfigCheck(const Result<config::Config>& config);

/// What a configuration is held against.
struct ConfigMachine {
  uint32_t ranks = 1;                        ///< that share it
  device::Kind device = device::Kind::kCpu;  ///< as GpuFacts::device
  EngineFacts engines;
  MachineFiles files;
};

/// Says whether the machine has what the configuration asks of it.
Checks ConfigChecks(const config::Config& config, const ConfigMachine& machine);

}  // namespace penstock::train
