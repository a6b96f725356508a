// Finds out whether a drive can be polled for completions, which iopoll needs.
#pragma once

#include <optional>

namespace penstock::aio {

/// Returns this for the drive that holds an open file, or that the file is; none if the system does
/// not say (a file system over several drives, no sysfs).
std::optional<bool> HasPolledQueues(int fd);

}  // namespace penstock::aio
