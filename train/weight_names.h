// What lies beside a model's config and holds weights by its name, in whatever form: safetensors,
// and those of PyTorch, DeepSpeed, TensorFlow and others, which this program does not read.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace penstock::train {

/// Returns the names in `folder` of files and folders that programs keep weights in, sorted.
/// Nothing is opened. Errors: those of listing the folder.
Result<std::vector<std::string>> FindWeightNames(const std::string& folder);

}  // namespace penstock::train
