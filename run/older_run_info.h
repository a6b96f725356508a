// The older formats of run.json (docs/run_format.md): versions 1 and 2 of penstock train, and
// version 1 of the Python package.
//
// Threads: any.
#pragma once

#include "base/folder.h"
#include "base/result.h"
#include "run/json_fields.h"
#include "run/run_info.h"

namespace penstock::train {

/// Reads versions 1 and 2 of penstock train. Errors: kCorruption.
Result<RunInfo> ParseOlderInfo(const JsonFields& fields, const Folder& run);

/// The key that only the package's version 1 has, with the version of its format.
inline constexpr const char* kPackageKey = "penstock_run";
inline constexpr int kPackageVersion = 1;
/// Reads it, and looks for its files: those of the state may have been moved with RUN, and those of
/// other states in its folders are leftovers. Errors: kCorruption.
Result<RunInfo> ParsePackageInfo(const JsonFields& fields, const Folder& run);

}  // namespace penstock::train
