// The machine as far as its files show it: kernel, CPUs, memory, and what control groups leave.
//
// Each function returns one check and never fails: what cannot be read is unknown.
//
// Threads: any.
#pragma once

#include <cstdint>
#include <optional>

#include "train/doctor/check.h"
#include "train/doctor/machine_files.h"

namespace penstock::train {

Check KernelCheck(const MachineFiles& files);
Check CpuCheck(const MachineFiles& files);
Check CpuQuotaCheck(const MachineFiles& files);
Check NumaCheck(const MachineFiles& files);
Check MemoryCheck(const MachineFiles& files);
/// The smallest limit of the process's control groups for memory, as cgroups(7) has them.
Check MemoryLimitCheck(const MachineFiles& files);
Check HugePageCheck(const MachineFiles& files);

Checks MachineChecks(const MachineFiles& files);

/// Returns how many CPUs the process may use, and nothing if the files do not say.
std::optional<uint64_t> UsableCpus(const MachineFiles& files);

}  // namespace penstock::train
