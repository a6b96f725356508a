// Finds the safetensors files of one model in a folder, and reads the indices beside them.
//
// Index: "model.safetensors.index.json" with {"weight_map": {tensor: file}}, as Hugging Face writes
// it for a model in several files.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/result.h"

namespace penstock::train {

struct SafetensorsIndex {
  std::string path;
  std::map<std::string, std::string> file_of;  ///< by tensor: the path of its file
};

struct SafetensorsSet {
  std::vector<std::string> files;  ///< paths, sorted
  std::vector<SafetensorsIndex> indices;
};

/// Returns all *.safetensors and their indices in a folder, except hidden ones. Links are followed,
/// because Hugging Face's cache consists of links. Errors: kNotFound (no such folder; a file that
/// an index names is missing), kInvalidArgument (an index that cannot be read), kIo.
Result<SafetensorsSet> FindSafetensors(const std::string& folder);

}  // namespace penstock::train
