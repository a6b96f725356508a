// A model as Hugging Face describes it: config.json, and safetensors beside it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "train/safetensors_set.h"

namespace penstock::train {

/// GPT-2, names as in Hugging Face's GPT2Config.
struct Gpt2Config {
  uint64_t vocab_size = 50257;
  uint64_t n_positions = 1024;
  uint64_t n_embd = 768;
  uint64_t n_layer = 12;
  uint64_t n_head = 12;
  uint64_t n_inner = 0;  ///< 0: 4 * n_embd
  double layer_norm_epsilon = 1e-5;
  double initializer_range = 0.02;

  uint64_t hidden() const { return n_inner == 0 ? 4 * n_embd : n_inner; }
};

/// Reads the text of a config.json; `name` is its path in messages. Errors: kInvalidArgument
/// (broken JSON, a model_type other than gpt2, an activation other than gelu_new, heads that do not
/// divide the width, untied embeddings, zero or absurd sizes), each naming path and key.
Result<Gpt2Config> ParseModel(const std::string& json, const std::string& name);

/// What `--model` names.
struct ModelSource {
  Gpt2Config config;
  std::string config_path;
  std::string config_json;                ///< the text as it was read, for exports
  std::string folder;                     ///< that the config lies in
  SafetensorsSet weights;                 ///< beside it
  std::vector<std::string> weight_names;  ///< of all weights beside it, also those not read
  std::vector<std::string> notices;       ///< dropout that is not applied, keys that have no effect
};

/// What is done with weights that lie beside a config.
enum class WeightsBeside {
  kFind,
  kIgnore,  ///< the training begins with others; `ModelSource::weights` has no files then
};

/// Reads a config.json or a folder that holds one. Errors: kNotFound; those of ParseModel; with
/// kFind those of FindSafetensors.
Result<ModelSource> ReadModel(const std::string& path, WeightsBeside beside = WeightsBeside::kFind);

}  // namespace penstock::train
