// GPT-2's config.json. Private to train/models, except for tests and benchmarks.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "train/models/config_reader.h"

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

/// Reads a config of model_type "gpt2". Errors: kInvalidArgument (an activation other than
/// gelu_new, heads that do not divide the width, untied embeddings, zero or absurd sizes), each
/// naming path and key.
Result<Gpt2Config> ReadGpt2Config(ConfigReader& config);

/// Returns ConfigReader::TakeNotices for GPT-2.
std::vector<std::string> TakeGpt2Notices(ConfigReader& config);

}  // namespace penstock::train
