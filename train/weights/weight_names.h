// Finds files beside a model's config that hold weights, judging by their names: safetensors, and
// the forms of PyTorch, DeepSpeed, TensorFlow and others, which this program does not read.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace penstock::train {

/// Returns the names in `folder` of files and folders in which programs keep weights, sorted.
/// Nothing is opened. Errors: those of listing the folder.
Result<std::vector<std::string>> FindWeightNames(const std::string& folder);

}  // namespace penstock::train
