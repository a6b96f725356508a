#include "train/models/gpt2_family.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "train/models/gpt2.h"

namespace penstock::train {
namespace {

using nlohmann::json;

/// The values that transformers takes for GPT-2 if a config does not give them.
constexpr uint64_t kVocabulary = 50257;
constexpr uint64_t kEndOfText = 50256;

class DescribedGpt2 final : public ModelDescription {
 public:
  explicit DescribedGpt2(const Gpt2Config& config) : config_(config) {}

  ModelSizes sizes() const override {
    return {.vocabulary = config_.vocab_size,
            .positions = config_.n_positions,
            .layers = config_.n_layer,
            .width = config_.n_embd};
  }
  zero::ModelSpec Spec() const override { return Gpt2Spec(config_); }
  zero::TensorSource Initialization(uint64_t seed) const override {
    return Gpt2Initialization(config_, seed);
  }
  ActivationBytes Activations(const BatchShape& shape, kernels::DType dtype) const override {
    return Gpt2::Memory(config_, shape, dtype);
  }
  kernels::OperatorOptions Operators(const BatchShape& shape, kernels::DType dtype,
                                     int threads) const override {
    return Gpt2Operators(config_, shape, dtype, threads);
  }
  Result<std::unique_ptr<Model>> Create(const BatchShape& shape, kernels::DType dtype,
                                        device::Device& device,
                                        kernels::ModelOperators& operators) const override {
    PENSTOCK_ASSIGN(std::unique_ptr<Model> model,
                    Gpt2::Create(config_, shape, dtype, device, operators));
    return model;
  }
  std::string Identity() const override {
    const nlohmann::ordered_json identity = {{"vocab_size", config_.vocab_size},
                                             {"n_positions", config_.n_positions},
                                             {"n_embd", config_.n_embd},
                                             {"n_layer", config_.n_layer},
                                             {"n_head", config_.n_head},
                                             {"n_inner", config_.hidden()},
                                             {"layer_norm_epsilon", config_.layer_norm_epsilon}};
    return identity.dump();
  }

 private:
  const Gpt2Config config_;
};

/// "h.N.attn.bias" and "h.N.attn.masked_bias": the causal masks that old files keep.
bool IsMask(std::string_view name) {
  if (!name.starts_with("h.")) return false;
  name.remove_prefix(2);
  const size_t digits = std::min(name.find_first_not_of("0123456789"), name.size());
  const std::string_view rest = name.substr(digits);
  return digits > 0 && (rest == ".attn.bias" || rest == ".attn.masked_bias");
}

/// Whether a token id, or each of a list, is one of the vocabulary, or there is none.
bool FitsVocabulary(const json& id, uint64_t vocabulary) {
  if (id.is_array()) {
    return std::ranges::all_of(id,
                               [&](const json& one) { return FitsVocabulary(one, vocabulary); });
  }
  return id.is_null() || (id.is_number_unsigned() && id.get<uint64_t>() < vocabulary);
}

class Family final : public ModelFamily {
 public:
  std::string_view model_type() const override { return "gpt2"; }
  const TensorNames& names() const override {
    static constexpr TensorNames kNames = {
        .prefix = "transformer.", .embedding = "wte.weight", .is_constant = IsMask};
    return kNames;
  }
  Result<DescribedModel> Read(ConfigReader& config) const override {
    PENSTOCK_ASSIGN(const Gpt2Config read, ReadGpt2Config(config));
    return DescribedModel{.model = DescribeGpt2(read), .notices = TakeGpt2Notices(config)};
  }
  /// transformers takes GPT-2's end of text for a config without ids, and warns of every id that is
  /// not in the vocabulary. There such a one becomes null: the model has no token of that use.
  void CompleteExport(json& config) const override {
    config["architectures"] = {"GPT2LMHeadModel"};
    const auto found = config.find("vocab_size");
    const uint64_t vocabulary =
        found != config.end() && found->is_number_unsigned() ? found->get<uint64_t>() : kVocabulary;
    for (const char* key : {"bos_token_id", "eos_token_id"}) {
      if (!config.contains(key)) config[key] = kEndOfText;
    }
    for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
      if (config.contains(key) && !FitsVocabulary(config[key], vocabulary)) config[key] = nullptr;
    }
  }
};

}  // namespace

const ModelFamily& Gpt2Family() {
  static const Family kFamily;
  return kFamily;
}

std::shared_ptr<const ModelDescription> DescribeGpt2(const Gpt2Config& config) {
  return std::make_shared<DescribedGpt2>(config);
}

}  // namespace penstock::train
