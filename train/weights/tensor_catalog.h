// Every tensor of one model's safetensors files, by name, before any is read.
//
// Names lose the prefix that Hugging Face puts before the family's names or leaves out. Constants
// in old files are not tensors of the model. If a file has a tied matrix only as the head, it is
// the embedding (train/models/family.h).
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "train/models/family.h"
#include "train/weights/safetensors.h"
#include "train/weights/safetensors_set.h"

namespace penstock::train {

/// Keeps the files open. Threads: any number may read it.
class TensorCatalog {
 public:
  /// Where a tensor is: a file, and its name there. Valid while the catalog lives.
  struct Place {
    const SafetensorsReader* file = nullptr;
    const std::string* name = nullptr;
    const SafetensorsEntry* entry = nullptr;

    /// Reads elements [begin, begin + values.size()), as SafetensorsReader::Read does.
    Status Read(uint64_t begin, std::span<float> values) const {
      return file->Read(*name, begin, values);
    }
  };
  using Places = std::map<std::string, Place, std::less<>>;

  /// Errors: those of SafetensorsReader; kInvalidArgument for a tensor that occurs twice, or for
  /// files that disagree with their index. Precondition: at least one file.
  static Result<TensorCatalog> Open(const SafetensorsSet& set, const TensorNames& names);
  /// The same for a model whose family is guessed from the names (GuessFamily).
  static Result<TensorCatalog> Open(const SafetensorsSet& set);

  const Places& places() const { return places_; }
  const TensorNames& names() const { return *names_; }
  /// Returns the files for a message: the first, and how many more.
  std::string FileNames() const;

 private:
  TensorCatalog() = default;
  Status OpenFiles(const SafetensorsSet& set);
  Status AddAll(const TensorNames& names);
  Status Add(const SafetensorsReader& file);
  Status CheckIndex(const SafetensorsIndex& index) const;

  const TensorNames* names_ = nullptr;
  std::vector<SafetensorsReader> files_;
  Places places_;
};

}  // namespace penstock::train
