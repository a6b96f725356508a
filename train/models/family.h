// A family is what all models of one model_type have in common: how a config is read, and the names
// of tensors in files.
//
// Each family is one object without state in a file of its own, and one line in models/registry.cc.
// Threads: any.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "train/models/config_reader.h"
#include "train/models/model.h"

namespace penstock::train {

/// The names of tensors in files, as far as they differ from those of zero::ModelSpec.
struct TensorNames {
  /// The prefix that Hugging Face puts before all names but the head's, or leaves out:
  /// "transformer.".
  std::string_view prefix;
  std::string_view embedding;  ///< of tokens: "wte.weight"
  /// The output layer. A model without a tensor of this name uses the embedding there; its files
  /// may have such a tensor beside the embedding or in its place.
  std::string_view head = "lm_head.weight";
  /// Returns whether a name without prefix is that of a constant in old files, which is not a
  /// tensor of the model. Null: there are none.
  bool (*is_constant)(std::string_view name) = nullptr;

  /// Returns `name` without the prefix.
  std::string_view Plain(std::string_view name) const {
    return name.starts_with(prefix) ? name.substr(prefix.size()) : name;
  }
  /// Returns Hugging Face's name of the tensor `plain` of a spec.
  std::string Stored(std::string_view plain) const {
    return std::string(plain == head ? "" : prefix).append(plain);
  }
};

/// The model that a config describes.
struct DescribedModel {
  std::shared_ptr<const ModelDescription> model;
  /// Notices for the user: keys that have no effect, sizes that the file does not give.
  std::vector<std::string> notices;
};

class ModelFamily {
 public:
  virtual ~ModelFamily() = default;

  /// Returns the value of "model_type" in configs of this family.
  virtual std::string_view model_type() const = 0;
  virtual const TensorNames& names() const = 0;
  /// Reads every key that changes the computation. Errors: kInvalidArgument for a value that is
  /// impossible or not implemented, naming config and key.
  virtual Result<DescribedModel> Read(ConfigReader& config) const = 0;
  /// Adds to the config.json of an export what transformers needs to load it and a run's own config
  /// may lack: the class, and token ids.
  virtual void CompleteExport(nlohmann::json& config) const = 0;
};

}  // namespace penstock::train
