// Making names durable.
#pragma once

#include <string>

#include "base/result.h"

namespace penstock {

/// Makes what was created, renamed or removed in a folder durable. Errors: of open and fsync, with
/// the folder's path.
Status SyncFolder(const std::string& path);

}  // namespace penstock
