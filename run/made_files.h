// The files of rows and curves that a run without a commit has made, which RunInfo names: they go
// with the run. A file of the user's may have one of their names.
//
// Threads: one at a time.
#pragma once

#include <string>
#include <vector>

#include "base/folder.h"
#include "base/result.h"

namespace penstock::train {

/// The names of a run's rows and findings in its folder.
std::vector<std::string> NamesOfRows();

/// Whether a run can have made a file: one of NamesOfRows, or the absolute path of a curve.
bool CanBeMade(const std::string& file);

/// Removes the files that are there; a curve only if it is one still. Errors: of removing.
Status RemoveMadeFiles(const Folder& run, const std::vector<std::string>& files);

}  // namespace penstock::train
