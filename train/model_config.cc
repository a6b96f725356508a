#include "train/model_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <limits>
#include <optional>

#include "train/files.h"
#include "train/strict_json.h"
#include "train/weight_names.h"

namespace penstock::train {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr Bytes kLargestConfig = 16_MiB;
constexpr double kMostParameters = 0x1p45;

/// A size in the config: its key, the name that other model types give it, and where it goes.
struct SizeKey {
  const char* key;
  const char* alias;  ///< accepted by Hugging Face for GPT-2 as well; null: none
  uint64_t Gpt2Config::*field;
  uint64_t most;
};
constexpr std::array<SizeKey, 5> kSizes = {{
    {"vocab_size", nullptr, &Gpt2Config::vocab_size, (uint64_t{1} << 31) - 1},
    {"n_positions", "max_position_embeddings", &Gpt2Config::n_positions, uint64_t{1} << 24},
    {"n_embd", "hidden_size", &Gpt2Config::n_embd, uint64_t{1} << 20},
    {"n_layer", "num_hidden_layers", &Gpt2Config::n_layer, uint64_t{1} << 13},
    {"n_head", "num_attention_heads", &Gpt2Config::n_head, uint64_t{1} << 16},
}};

/// A key that changes what GPT-2 computes, and the one value that is implemented.
struct FixedKey {
  const char* key;
  bool value;
  const char* why;
};
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
constexpr std::array<const char*, 21> kDescriptions = {"_name_or_path",
                                                       "_num_labels",
                                                       "architectures",
                                                       "bos_token_id",
                                                       "dtype",
                                                       "eos_token_id",
                                                       "gradient_checkpointing",
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

/// Reads the keys of one config.json, remembering which it has seen.
class ConfigReader {
 public:
  ConfigReader(const std::string& path, json object) : path_(path), object_(std::move(object)) {}

  Result<Gpt2Config> Read();
  std::vector<std::string> TakeNotices();

 private:
  template <typename... Args>
  Error Wrong(const char* key, fmt::format_string<Args...> format, Args&&... args) const {
    return MakeError(ErrorCode::kInvalidArgument, "model config {}: {} {}", path_, key,
                     fmt::format(format, std::forward<Args>(args)...));
  }
  /// The value of a key; null where it is absent or null.
  const json* Find(const char* key) {
    seen_.emplace_back(key);
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }

  Status ReadModelType();
  Result<std::optional<uint64_t>> ReadSize(const char* key, uint64_t most);
  Status ReadSizes(Gpt2Config* config);
  Status ReadReal(const char* key, double least, double* value);
  Status CheckActivation();
  Status CheckFixed();
  Status CheckTogether(const Gpt2Config& config) const;
  Status NoteDropout();

  const std::string& path_;
  json object_;
  std::vector<std::string> seen_;
  std::vector<std::string> defaults_;
  std::vector<std::string> notices_;
};

Result<Gpt2Config> ConfigReader::Read() {
  Gpt2Config config;
  PENSTOCK_TRY(ReadModelType());
  PENSTOCK_TRY(ReadSizes(&config));
  PENSTOCK_TRY(ReadReal("layer_norm_epsilon", std::numeric_limits<double>::min(),
                        &config.layer_norm_epsilon));
  PENSTOCK_TRY(ReadReal("initializer_range", 0, &config.initializer_range));
  PENSTOCK_TRY(CheckActivation());
  PENSTOCK_TRY(CheckFixed());
  PENSTOCK_TRY(CheckTogether(config));
  PENSTOCK_TRY(NoteDropout());
  return config;
}

Status ConfigReader::ReadModelType() {
  const json* const type = Find("model_type");
  if (type == nullptr) return Wrong("model_type", "is missing; it must be \"gpt2\"");
  if (*type != "gpt2")
    return Wrong("model_type", "is {}; only \"gpt2\" is implemented", Excerpt(*type));
  return {};
}

Result<std::optional<uint64_t>> ConfigReader::ReadSize(const char* key, uint64_t most) {
  const json* const value = Find(key);
  if (value == nullptr) return std::optional<uint64_t>();
  if (!value->is_number_unsigned() || value->get<uint64_t>() == 0 ||
      value->get<uint64_t>() > most) {
    return Wrong(key, "is {}; it must be a whole number from 1 to {}", Excerpt(*value), most);
  }
  return std::optional(value->get<uint64_t>());
}

Status ConfigReader::ReadSizes(Gpt2Config* config) {
  for (const SizeKey& size : kSizes) {
    PENSTOCK_ASSIGN(auto value, ReadSize(size.key, size.most));
    if (size.alias != nullptr) {
      PENSTOCK_ASSIGN(const auto alias, ReadSize(size.alias, size.most));
      if (value && alias && *value != *alias) {
        return Wrong(size.key, "is {} and {}, another name for it, is {}; keep one", *value,
                     size.alias, *alias);
      }
      if (!value) value = alias;
    }
    if (!value) defaults_.push_back(fmt::format("{} {}", size.key, config->*size.field));
    if (value) config->*size.field = *value;
  }
  PENSTOCK_ASSIGN(const auto inner, ReadSize("n_inner", uint64_t{1} << 24));
  config->n_inner = inner.value_or(0);
  return {};
}

Status ConfigReader::ReadReal(const char* key, double least, double* value) {
  const json* const found = Find(key);
  if (found == nullptr) return {};
  const double number = found->is_number() ? found->get<double>() : -1;
  if (!(number >= least && number <= 1)) {
    return Wrong(key, "is {}; it must be a number {} 0 and at most 1", Excerpt(*found),
                 least == 0 ? "of at least" : "above");
  }
  *value = number;
  return {};
}

Status ConfigReader::CheckActivation() {
  const json* const activation = Find("activation_function");
  if (activation == nullptr || *activation == "gelu_new") return {};
  return Wrong("activation_function", "is {}; only \"gelu_new\" is implemented",
               Excerpt(*activation));
}

Status ConfigReader::CheckFixed() {
  for (const FixedKey& fixed : kFixed) {
    const json* const value = Find(fixed.key);
    if (value == nullptr || *value == fixed.value) continue;
    return Wrong(fixed.key, "is {} and must be {}: {}", Excerpt(*value), fixed.value, fixed.why);
  }
  return {};
}

Status ConfigReader::CheckTogether(const Gpt2Config& config) const {
  if (config.n_embd % config.n_head != 0) {
    return Wrong("n_head", "is {}, which does not divide n_embd, {}", config.n_head, config.n_embd);
  }
  const auto width = static_cast<double>(config.n_embd);
  const double parameters = static_cast<double>(config.vocab_size + config.n_positions) * width +
                            static_cast<double>(config.n_layer) * width *
                                (4 * width + 2 * static_cast<double>(config.hidden()));
  if (parameters > kMostParameters) {
    return Wrong("n_embd",
                 "and the other sizes make a model of {:.3g} parameters, above the limit of "
                 "{:.3g}",
                 parameters, kMostParameters);
  }
  return {};
}

Status ConfigReader::NoteDropout() {
  std::string applied;
  for (const char* key : kDropouts) {
    double rate = 0;
    PENSTOCK_TRY(ReadReal(key, 0, &rate));
    if (rate == 0) continue;
    applied += fmt::format("{}{} {}", applied.empty() ? "" : ", ", key, rate);
  }
  if (!applied.empty()) {
    notices_.push_back(fmt::format("model config {}: dropout is not applied ({})", path_, applied));
  }
  return {};
}

std::vector<std::string> ConfigReader::TakeNotices() {
  if (!defaults_.empty()) {
    notices_.push_back(
        fmt::format("model config {}: taken from GPT-2, as the file does not say: {}", path_,
                    fmt::join(defaults_, ", ")));
  }
  std::vector<std::string> unused;
  for (const auto& [key, value] : object_.items()) {
    const bool known =
        std::find(seen_.begin(), seen_.end(), key) != seen_.end() ||
        std::find(kDescriptions.begin(), kDescriptions.end(), key) != kDescriptions.end();
    if (!known) unused.push_back(key);
  }
  if (!unused.empty()) {
    notices_.push_back(
        fmt::format("model config {}: without effect here: {}", path_, fmt::join(unused, ", ")));
  }
  return std::move(notices_);
}

}  // namespace

Result<Gpt2Config> ParseModel(const std::string& json, const std::string& name) {
  PENSTOCK_ASSIGN(nlohmann::json object, ParseJsonObject(json, fmt::format("model config {}", name),
                                                         ErrorCode::kInvalidArgument));
  return ConfigReader(name, std::move(object)).Read();
}

Result<ModelSource> ReadModel(const std::string& path, WeightsBeside beside) {
  std::error_code error;
  const bool folder = fs::is_directory(path, error);
  ModelSource source;
  source.config_path = folder ? (fs::path(path) / "config.json").string() : path;
  PENSTOCK_ASSIGN(source.config_json, ReadTextFile(source.config_path, kLargestConfig));
  PENSTOCK_ASSIGN(json object, ParseJsonObject(source.config_json,
                                               fmt::format("model config {}", source.config_path),
                                               ErrorCode::kInvalidArgument));
  ConfigReader reader(source.config_path, std::move(object));
  PENSTOCK_ASSIGN(source.config, reader.Read());
  source.notices = reader.TakeNotices();
  const fs::path parent = fs::path(source.config_path).parent_path();
  source.folder = parent.empty() ? std::string(".") : parent.string();
  PENSTOCK_ASSIGN(source.weight_names, FindWeightNames(source.folder));
  if (beside == WeightsBeside::kFind) {
    PENSTOCK_ASSIGN(source.weights, FindSafetensors(source.folder));
  }
  return source;
}

}  // namespace penstock::train
