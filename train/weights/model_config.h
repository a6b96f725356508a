// A model as Hugging Face describes it: config.json, and safetensors beside it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "train/models/registry.h"
#include "train/weights/safetensors_set.h"

namespace penstock::train {

/// The model that `--model` names.
struct ModelSource {
  const ModelFamily* family = nullptr;
  std::shared_ptr<const ModelDescription> description;
  std::string config_path;
  std::string config_json;                ///< the text as it was read, for exports
  std::string folder;                     ///< in which the config lies
  SafetensorsSet weights;                 ///< weights beside the config
  std::vector<std::string> weight_names;  ///< names of all weights beside it, also unread ones
  std::vector<std::string> notices;       ///< dropout that is not applied, keys that have no effect
};

/// What is done with weights that lie beside a config.
enum class WeightsBeside {
  kFind,
  kIgnore,  ///< the training begins with others; `ModelSource::weights` has no files then
};

/// Reads a config.json or a folder that holds one. Errors: kNotFound; those of ParseModel; with
/// kFind those of FindSafetensors.
Result<ModelSource> ReadModel(const std::string& path, WeightsBeside beside = WeightsBeside::kFind,
                              ModelFamilies families = AllModelFamilies());

}  // namespace penstock::train
