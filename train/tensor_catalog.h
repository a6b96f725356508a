// Every tensor of one model's safetensors files, by name, before any is read.
//
// Names lose the "transformer." that Hugging Face puts before those of GPT-2 or leaves out. The
// causal masks that old files keep ("h.N.attn.bias", "…masked_bias") are constants and no tensors
// of the model; where a file keeps the tied matrix only as "lm_head.weight", it is "wte.weight".
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "train/safetensors.h"
#include "train/safetensors_set.h"

namespace penstock::train {

inline constexpr char kTiedHead[] = "lm_head.weight";

/// `name` without "transformer.".
std::string_view WithoutPrefix(std::string_view name);

/// Keeps the files open. Threads: any number may read it.
class TensorCatalog {
 public:
  /// Where a tensor is: a file, and its name there. Valid while the catalog lives.
  struct Place {
    const SafetensorsReader* file = nullptr;
    const std::string* name = nullptr;
    const SafetensorsEntry* entry = nullptr;

    /// Elements [begin, begin + values.size()), as SafetensorsReader::Read.
    Status Read(uint64_t begin, std::span<float> values) const {
      return file->Read(*name, begin, values);
    }
  };
  using Places = std::map<std::string, Place, std::less<>>;

  /// Errors: those of SafetensorsReader; kInvalidArgument for a tensor that is there twice, or for
  /// files that do not hold what their index says. Precondition: at least one file.
  static Result<TensorCatalog> Open(const SafetensorsSet& set);

  const Places& places() const { return places_; }
  /// The files for a message: the first, and how many more.
  std::string FileNames() const;

 private:
  Status Add(const SafetensorsReader& file);
  Status CheckIndex(const SafetensorsIndex& index) const;

  std::vector<SafetensorsReader> files_;
  Places places_;
};

}  // namespace penstock::train
