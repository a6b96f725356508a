// The limits of the process (ulimit), as /proc/self/limits has them.
//
// Threads: any.
#pragma once

#include "train/doctor/check.h"
#include "train/doctor/machine_files.h"

namespace penstock::train {

/// The limit of locked memory, which binds what io_uring registers unless the process has
/// CAP_IPC_LOCK in the machine's own user namespace (capabilities(7)).
Check LockedMemoryCheck(const MachineFiles& files);

Checks LimitChecks(const MachineFiles& files);

}  // namespace penstock::train
