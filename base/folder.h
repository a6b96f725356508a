// Names of files and folders that are durable.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace penstock {

/// Makes what was created, renamed or removed in a folder durable. Errors: of open and fsync, with
/// the folder's path.
Status SyncFolder(const std::string& path);

/// Makes a folder and those above it that are missing, durably. Those it made, innermost first.
Result<std::vector<std::string>> MakeFolders(const std::string& path);

}  // namespace penstock
