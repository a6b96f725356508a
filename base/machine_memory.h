// How much memory there is for this process.
//
// Threads: any.
#pragma once

#include <string>

#include "base/result.h"
#include "base/units.h"

namespace penstock {

/// The memory available to this process.
struct MachineMemory {
  Bytes total;
  Bytes available;
};
/// Reads /proc/meminfo. If a control group (the process's own or one above it) has a lower limit,
/// both values are what is left of that limit. `root` is the folder of /proc and /sys. Errors: kIo.
Result<MachineMemory> ReadMachineMemory(const std::string& root = "/");

/// Returns the default limit of host memory: three quarters of what is available.
constexpr Bytes DefaultHostMemory(const MachineMemory& memory) {
  return Bytes{memory.available.value / 4 * 3};
}

}  // namespace penstock
