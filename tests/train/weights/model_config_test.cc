#include "train/weights/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tests/temp_folder.h"
#include "train/models/gpt2_config.h"
#include "train/models/gpt2_family.h"
#include "train/weights/weight_names.h"

namespace penstock::train {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// The keys of GPT-2's own config.json.
constexpr char kGpt2[] = R"({
  "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
  "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02,
  "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 1280, "n_head": 20,
  "n_layer": 36, "n_positions": 1024, "resid_pdrop": 0.1, "summary_activation": null,
  "summary_first_dropout": 0.1, "summary_proj_to_labels": true, "summary_type": "cls_index",
  "summary_use_proj": true, "task_specific_params": {"text-generation": {"do_sample": true}},
  "vocab_size": 50257})";

constexpr char kSmall[] =
    R"({"model_type": "gpt2", "vocab_size": 256, "n_positions": 64, "n_embd": 32, "n_layer": 2,
        "n_head": 4EXTRA})";

/// The small config with more members: With(R"("n_inner": 7)").
std::string With(const std::string& members) {
  std::string text = kSmall;
  const std::string mark = "EXTRA";
  return text.replace(text.find(mark), mark.size(), members.empty() ? "" : ", " + members);
}

/// What was read of a GPT-2.
Gpt2Config ConfigOf(const ModelSource& model) {
  ConfigReader reader(model.config_path, nlohmann::json::parse(model.config_json));
  const Gpt2Config config = ReadGpt2Config(reader).value();
  EXPECT_EQ(model.description->Identity(), DescribeGpt2(config)->Identity());
  return config;
}

class ModelConfig : public testing::Test {
 protected:
  Result<ModelSource> Read(const std::string& text) const {
    return ReadModel(folder_.Write("config.json", text));
  }
  testing::AssertionResult Refused(const std::string& text, std::vector<std::string> parts) const {
    parts.push_back(folder_.Path("config.json"));
    return FailsWith(Read(text), ErrorCode::kInvalidArgument, parts);
  }
  /// The small config with this value for this key, whatever it said before.
  std::string Replace(const std::string& key, const std::string& value) const {
    std::string text = With("");
    const size_t at = text.find("\"" + key + "\": ") + key.size() + 4;
    return text.replace(at, text.find_first_of(",}", at) - at, value);
  }

  TempFolder folder_;
};

TEST_F(ModelConfig, Gpt2sOwnFileIsRead) {
  const ModelSource model = Read(kGpt2).value();
  const Gpt2Config config = ConfigOf(model);
  EXPECT_EQ(config.vocab_size, 50257u);
  EXPECT_EQ(config.n_positions, 1024u);
  EXPECT_EQ(config.n_embd, 1280u);
  EXPECT_EQ(config.n_layer, 36u);
  EXPECT_EQ(config.n_head, 20u);
  EXPECT_EQ(config.n_inner, 0u);
  EXPECT_EQ(config.hidden(), 5120u);
  EXPECT_EQ(config.layer_norm_epsilon, 1e-5);
  EXPECT_EQ(config.initializer_range, 0.02);
  EXPECT_EQ(model.config_json, kGpt2);
  EXPECT_EQ(model.config_path, folder_.Path("config.json"));
  EXPECT_THAT(model.weights.files, IsEmpty());
  EXPECT_THAT(model.notices,
              ElementsAre(AllOf(HasSubstr("dropout is not applied"), HasSubstr("attn_pdrop 0.1"),
                                HasSubstr("embd_pdrop 0.1"))));
}

TEST_F(ModelConfig, RecomputationThatIsTurnedOffIsNotFollowedAndSaid) {
  const std::string off = folder_.Write("off.json", With(R"("gradient_checkpointing": false)"));
  EXPECT_THAT(ReadModel(off).value().notices,
              ElementsAre(HasSubstr("gradient_checkpointing false is not followed")));
  const std::string on = folder_.Write("on.json", With(R"("gradient_checkpointing": true)"));
  EXPECT_THAT(ReadModel(on).value().notices, IsEmpty());
}

TEST_F(ModelConfig, AFolderStandsForTheConfigInIt) {
  folder_.Write("config.json", With(""));
  const ModelSource model = ReadModel(folder_.Path()).value();
  EXPECT_EQ(model.config_path, folder_.Path("config.json"));
  EXPECT_EQ(ConfigOf(model).n_embd, 32u);
  EXPECT_THAT(model.notices, IsEmpty());
}

TEST_F(ModelConfig, AnyFileNameWillDo) {
  const std::string path = folder_.Write("tiny.json", With(R"("n_inner": 100)"));
  EXPECT_EQ(ConfigOf(*ReadModel(path)).hidden(), 100u);
}

TEST_F(ModelConfig, NamesThatHuggingFaceAcceptsForTheSameAreRead) {
  const Gpt2Config config = ConfigOf(
      *Read(R"({"model_type": "gpt2", "vocab_size": 9, "hidden_size": 24, "num_hidden_layers": 3,
               "num_attention_heads": 6, "max_position_embeddings": 11})"));
  EXPECT_EQ(config.n_embd, 24u);
  EXPECT_EQ(config.n_layer, 3u);
  EXPECT_EQ(config.n_head, 6u);
  EXPECT_EQ(config.n_positions, 11u);
  EXPECT_TRUE(Refused(With(R"("hidden_size": 64)"), {"n_embd", "32", "hidden_size", "64"}));
  EXPECT_TRUE(Read(With(R"("hidden_size": 32)")).ok());
}

TEST_F(ModelConfig, DefaultsAndKeysWithoutEffectAreNoticed) {
  const ModelSource model = Read(R"({"model_type": "gpt2", "vocab_size": 256, "rope_theta": 1,
                                     "unheard_of": {}})")
                                .value();
  EXPECT_EQ(ConfigOf(model).n_embd, 768u);
  EXPECT_THAT(model.notices, Contains(AllOf(HasSubstr("n_embd 768"), HasSubstr("n_layer 12"),
                                            HasSubstr("n_head 12"), HasSubstr("n_positions 1024"),
                                            Not(HasSubstr("vocab_size")))));
  EXPECT_THAT(model.notices, Contains(HasSubstr("without effect here: rope_theta, unheard_of")));
}

TEST_F(ModelConfig, DropoutOfZeroIsNotWorthANotice) {
  EXPECT_THAT(Read(With(R"("attn_pdrop": 0.0, "resid_pdrop": 0)"))->notices, IsEmpty());
  EXPECT_TRUE(Refused(With(R"("attn_pdrop": "0.1")"), {"attn_pdrop", "\"0.1\""}));
}

TEST_F(ModelConfig, MissingPathsAreNotFound) {
  EXPECT_TRUE(FailsWith(ReadModel(folder_.Path("no.json")), ErrorCode::kNotFound,
                        {folder_.Path("no.json")}));
  EXPECT_TRUE(
      FailsWith(ReadModel(folder_.Path()), ErrorCode::kNotFound, {folder_.Path("config.json")}));
}

TEST_F(ModelConfig, BrokenJsonIsRefused) {
  EXPECT_TRUE(Refused("", {"not JSON"}));
  EXPECT_TRUE(Refused("{\"model_type\": \"gpt2\",}", {"not JSON", "byte"}));
  EXPECT_TRUE(Refused("[]", {"not a JSON object"}));
  EXPECT_TRUE(Refused(With(R"("n_layer": 3)"), {"\"n_layer\" twice"}));
}

TEST_F(ModelConfig, NestingIsBounded) {
  const auto nested = [](size_t levels) {
    return "\"x\": " + std::string(levels, '[') + std::string(levels, ']');
  };
  EXPECT_TRUE(Read(With(nested(63))).ok());  // the object around them is a level, too
  EXPECT_TRUE(Refused(With(nested(64)), {"nested deeper than 64 levels"}));
  EXPECT_TRUE(Refused(With(nested(200'000)), {"nested deeper than 64 levels"}));
}

TEST_F(ModelConfig, OtherModelTypesAreRefused) {
  EXPECT_TRUE(Refused("{}", {"model_type", "missing"}));
  EXPECT_TRUE(Refused(Replace("model_type", "\"llama\""), {"model_type", "\"llama\"", "gpt2"}));
  EXPECT_TRUE(Refused(Replace("model_type", "2"), {"model_type", "gpt2"}));
}

TEST_F(ModelConfig, WhatWouldComputeSomethingElseIsRefused) {
  EXPECT_TRUE(Refused(With(R"("activation_function": "gelu")"),
                      {"activation_function", "\"gelu\"", "gelu_new"}));
  EXPECT_TRUE(Refused(With(R"("tie_word_embeddings": false)"), {"tie_word_embeddings", "false"}));
  EXPECT_TRUE(Refused(With(R"("scale_attn_weights": false)"), {"scale_attn_weights"}));
  EXPECT_TRUE(Refused(With(R"("scale_attn_by_inverse_layer_idx": true)"),
                      {"scale_attn_by_inverse_layer_idx"}));
  EXPECT_TRUE(Refused(With(R"("add_cross_attention": true)"), {"add_cross_attention"}));
  EXPECT_TRUE(Refused(With(R"("reorder_and_upcast_attn": "no")"), {"reorder_and_upcast_attn"}));
  EXPECT_TRUE(Read(With(R"("tie_word_embeddings": true, "scale_attn_weights": true,
                           "scale_attn_by_inverse_layer_idx": false,
                           "activation_function": "gelu_new", "n_inner": null)"))
                  .ok());
}

TEST_F(ModelConfig, SizesThatCannotBeAreRefused) {
  for (const char* key : {"vocab_size", "n_positions", "n_embd", "n_layer", "n_head"}) {
    for (const char* value : {"0", "-1", "1.5", "\"8\"", "[]", "9999999999", "1e3", "true"}) {
      EXPECT_TRUE(Refused(Replace(key, value), {key, "whole number"})) << key << " " << value;
    }
  }
  EXPECT_TRUE(Refused(With(R"("n_inner": 0)"), {"n_inner"}));
  EXPECT_TRUE(Refused(With(R"("layer_norm_epsilon": 0)"), {"layer_norm_epsilon"}));
  EXPECT_TRUE(Refused(With(R"("layer_norm_epsilon": "1e-5")"), {"layer_norm_epsilon"}));
  EXPECT_TRUE(Refused(With(R"("initializer_range": -0.1)"), {"initializer_range"}));
}

TEST_F(ModelConfig, ThereAreAtMostAsManyLayersAsCanBePlanned) {
  EXPECT_TRUE(Read(Replace("n_layer", "8192")).ok());
  EXPECT_TRUE(Refused(Replace("n_layer", "8193"), {"n_layer", "8193", "1 to 8192"}));
}

TEST_F(ModelConfig, HeadsMustDivideTheWidth) {
  EXPECT_TRUE(Refused(Replace("n_head", "5"), {"n_head", "5", "n_embd", "32"}));
}

TEST_F(ModelConfig, SizesThatAreAbsurdTogetherAreRefused) {
  EXPECT_TRUE(Refused(R"({"model_type": "gpt2", "vocab_size": 50257, "n_positions": 1024,
                          "n_embd": 1048576, "n_layer": 8192, "n_head": 16})",
                      {"n_embd", "parameters", "limit"}));
}

TEST_F(ModelConfig, SafetensorsBesideItAreFoundInOrder) {
  folder_.Write("model-00002-of-00002.safetensors", "");
  folder_.Write("model-00001-of-00002.safetensors", "");
  folder_.Write(".hidden.safetensors", "");
  folder_.Write("tokenizer.json", "");
  EXPECT_THAT(Read(With(""))->weights.files,
              ElementsAre(folder_.Path("model-00001-of-00002.safetensors"),
                          folder_.Path("model-00002-of-00002.safetensors")));
}

TEST_F(ModelConfig, LinkedWeightsAreFoundAsInHuggingFacesCache) {
  const TempFolder blobs;
  blobs.Write("blob", "");
  std::filesystem::create_symlink(blobs.Path("blob"), folder_.Path("model.safetensors"));
  EXPECT_THAT(Read(With(""))->weights.files, ElementsAre(folder_.Path("model.safetensors")));
}

TEST_F(ModelConfig, AnIndexWhoseShardIsMissingIsRefused) {
  folder_.Write("model-00001-of-00002.safetensors", "");
  const std::string index = folder_.Write(
      "model.safetensors.index.json", R"({"weight_map": {"a": "model-00001-of-00002.safetensors",
                                          "b": "model-00002-of-00002.safetensors"}})");
  EXPECT_TRUE(FailsWith(Read(With("")), ErrorCode::kNotFound,
                        {index, "tensor b", "model-00002-of-00002.safetensors"}));
  folder_.Write("model-00002-of-00002.safetensors", "");
  EXPECT_EQ(Read(With(""))->weights.files.size(), 2u);
  folder_.Write("model.safetensors.index.json", "{}");
  EXPECT_TRUE(FailsWith(Read(With("")), ErrorCode::kInvalidArgument, {index, "\"weight_map\""}));
}

TEST_F(ModelConfig, WeightsThatAreIgnoredMayBeIncomplete) {
  folder_.Write("model.safetensors.index.json", R"({"weight_map": {"a": "gone.safetensors"}})");
  const std::string path = folder_.Write("config.json", With(""));
  EXPECT_FALSE(ReadModel(path, WeightsBeside::kFind).ok());
  const ModelSource model = ReadModel(path, WeightsBeside::kIgnore).value();
  EXPECT_THAT(model.weights.files, IsEmpty());
  EXPECT_THAT(model.weight_names, ElementsAre("model.safetensors.index.json"));
  EXPECT_EQ(model.folder, folder_.Path());
}

TEST_F(ModelConfig, WeightsOfEveryFormAreKnownByTheirNames) {
  const std::vector<std::string> weights = {"checkpoint-500/model.txt",
                                            "flax_model.msgpack",
                                            "global_step1/a",
                                            "iter_0000001/a",
                                            "latest",
                                            "latest_checkpointed_iteration.txt",
                                            "model-q4.gguf",
                                            "model.bin",
                                            "model.ckpt",
                                            "model.ckpt-10.index",
                                            "model.ckpt.data-00000-of-00001",
                                            "model.h5",
                                            "model.onnx",
                                            "model.safetensors",
                                            "mp_rank_00_model_states.pt",
                                            "pytorch_model-00001-of-00002.bin",
                                            "pytorch_model.bin.index.json",
                                            "saved_model.pb",
                                            "tf_model.h5",
                                            "weights.pth",
                                            "zero_pp_rank_0_mp_rank_00_optim_states.pt"};
  std::vector<std::string> names;
  for (const std::string& path : weights) {
    folder_.Write(path, "");
    names.push_back(path.substr(0, path.find('/')));
  }
  for (const std::string other :
       {"config.json", "tokenizer.json", "vocab.json", "merges.txt", "README.md", "data.bin",
        "train.u32", "generation_config.json", "run1/metrics.jsonl", "zero_to_fp32.py"}) {
    folder_.Write(other, "");
  }
  std::sort(names.begin(), names.end());
  EXPECT_EQ(FindWeightNames(folder_.Path()).value(), names);
}

}  // namespace
}  // namespace penstock::train
