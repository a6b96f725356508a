// Makes room for a new file of lines in a run's folder where the old one cannot be used.
//
// Threads: any.
#pragma once

#include <string>

#include "base/folder.h"
#include "base/notify.h"
#include "base/result.h"

namespace penstock::train {

/// The suffix of a file that could not be used.
inline constexpr const char* kAside = ".aside";

/// Renames the file (kAside), and has a notice say so after `why`. Errors: of renaming.
Status PutAside(const Folder& folder, const std::string& name, const std::string& why,
                const Notify& notify);

}  // namespace penstock::train
