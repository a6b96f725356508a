// Whether a drive can be polled for completions, as iopoll asks for.
#pragma once

#include <optional>

namespace penstock::aio {

/// Of the drive that an open file lies on, or that it is; none where the system does not say (a
/// file system over several drives, no sysfs).
std::optional<bool> HasPolledQueues(int fd);

}  // namespace penstock::aio
