#include "train/models/gpt2_config.h"

#include <array>
#include <limits>

namespace penstock::train {
namespace {

constexpr double kMaxParameters = 0x1p45;

/// A size in the config, and where it goes.
struct Gpt2Size {
  SizeKey key;
  uint64_t Gpt2Config::*field;
};
constexpr std::array<Gpt2Size, 5> kSizes = {{
    {{"vocab_size", nullptr, (uint64_t{1} << 31) - 1}, &Gpt2Config::vocab_size},
    {{"n_positions", "max_position_embeddings", uint64_t{1} << 24}, &Gpt2Config::n_positions},
    {{"n_embd", "hidden_size", uint64_t{1} << 20}, &Gpt2Config::n_embd},
    {{"n_layer", "num_hidden_layers", uint64_t{1} << 13}, &Gpt2Config::n_layer},
    {{"n_head", "num_attention_heads", uint64_t{1} << 16}, &Gpt2Config::n_head},
}};

constexpr std::array<FixedKey, 6> kFixed = {{
    {"tie_word_embeddings", true, "an output layer apart from the embedding is not implemented"},
    {"scale_attn_weights", true, "attention without its scale is not implemented"},
    {"scale_attn_by_inverse_layer_idx", false, "a scale by layer is not implemented"},
    {"reorder_and_upcast_attn", false, "this order of attention is not implemented"},
    {"add_cross_attention", false, "cross attention is not implemented"},
    {"is_encoder_decoder", false, "encoders are not implemented"},
}};

constexpr std::array<const char*, 4> kDropouts = {"attn_pdrop", "embd_pdrop", "resid_pdrop",
                                                  "summary_first_dropout"};

/// Keys that describe a model or its use elsewhere, and that training does not need.
constexpr std::array<const char*, 20> kDescriptions = {"_name_or_path",
                                                       "_num_labels",
                                                       "architectures",
                                                       "bos_token_id",
                                                       "dtype",
                                                       "eos_token_id",
                                                       "id2label",
                                                       "label2id",
                                                       "n_ctx",
                                                       "output_past",
                                                       "pad_token_id",
                                                       "summary_activation",
                                                       "summary_proj_to_labels",
                                                       "summary_type",
                                                       "summary_use_proj",
                                                       "task_specific_params",
                                                       "torch_dtype",
                                                       "transformers_version",
                                                       "use_cache",
                                                       "model_type"};

Status CheckTogether(const ConfigReader& reader, const Gpt2Config& config) {
  if (config.n_embd % config.n_head != 0) {
    return reader.Wrong("n_head", "is {}, which does not divide n_embd, {}", config.n_head,
                        config.n_embd);
  }
  const auto width = static_cast<double>(config.n_embd);
  const double parameters = static_cast<double>(config.vocab_size + config.n_positions) * width +
                            static_cast<double>(config.n_layer) * width *
                                (4 * width + 2 * static_cast<double>(config.hidden()));
  if (parameters > kMaxParameters) {
    return reader.Wrong("n_embd",
                        "and the other sizes make a model of {:.3g} parameters, above the limit of "
                        "{:.3g}",
                        parameters, kMaxParameters);
  }
  return {};
}

}  // namespace

Result<Gpt2Config> ReadGpt2Config(ConfigReader& config) {
  Gpt2Config read;
  for (const Gpt2Size& size : kSizes) {
    PENSTOCK_TRY(config.ReadSize(size.key, &(read.*size.field)));
  }
  PENSTOCK_ASSIGN(const auto inner, config.ReadSize("n_inner", uint64_t{1} << 24));
  read.n_inner = inner.value_or(0);
  PENSTOCK_TRY(config.ReadReal("layer_norm_epsilon", std::numeric_limits<double>::min(),
                               &read.layer_norm_epsilon));
  PENSTOCK_TRY(config.ReadReal("initializer_range", 0, &read.initializer_range));
  PENSTOCK_TRY(config.CheckText("activation_function", "gelu_new"));
  PENSTOCK_TRY(config.CheckFixed(kFixed));
  PENSTOCK_TRY(CheckTogether(config, read));
  PENSTOCK_TRY(config.NoteDropout(kDropouts));
  config.NoteRecomputation();
  return read;
}

std::vector<std::string> TakeGpt2Notices(ConfigReader& config) {
  return config.TakeNotices("GPT-2", kDescriptions);
}

}  // namespace penstock::train
