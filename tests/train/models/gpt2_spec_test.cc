// GPT-2 as zero sees it: names, shapes, groups, uses, and the initial weights.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "train/models/gpt2.h"

namespace penstock::train {
namespace {

using ::testing::ElementsAre;
using zero::ModuleId;

const Gpt2Config kSpecConfig = {
    .vocab_size = 50, .n_positions = 11, .n_embd = 12, .n_layer = 2, .n_head = 3};

std::vector<std::string> Described(const zero::ModuleSpec& module) {
  std::vector<std::string> lines;
  for (const zero::TensorSpec& tensor : module.tensors) {
    lines.push_back(fmt::format("{} {}{}", tensor.name, fmt::join(tensor.shape, " "),
                                tensor.group == offload::kDecay ? "" : " no decay"));
  }
  return lines;
}

TEST(Gpt2SpecTest, HasTheTensorsOfHuggingFaceInModules) {
  const zero::ModelSpec spec = Gpt2Spec(kSpecConfig);
  ASSERT_EQ(spec.modules.size(), 5U);
  EXPECT_EQ(spec.modules[0].name, "wte");
  EXPECT_THAT(Described(spec.modules[0]), ElementsAre("wte.weight 50 12"));
  EXPECT_EQ(spec.modules[1].name, "wpe");
  EXPECT_THAT(Described(spec.modules[1]), ElementsAre("wpe.weight 11 12"));
  EXPECT_EQ(spec.modules[2].name, "h.0");
  EXPECT_EQ(spec.modules[3].name, "h.1");
  EXPECT_THAT(Described(spec.modules[3]),
              ElementsAre("h.1.ln_1.weight 12 no decay", "h.1.ln_1.bias 12 no decay",
                          "h.1.attn.c_attn.weight 12 36", "h.1.attn.c_attn.bias 36 no decay",
                          "h.1.attn.c_proj.weight 12 12", "h.1.attn.c_proj.bias 12 no decay",
                          "h.1.ln_2.weight 12 no decay", "h.1.ln_2.bias 12 no decay",
                          "h.1.mlp.c_fc.weight 12 48", "h.1.mlp.c_fc.bias 48 no decay",
                          "h.1.mlp.c_proj.weight 48 12", "h.1.mlp.c_proj.bias 12 no decay"));
  EXPECT_EQ(spec.modules[4].name, "ln_f");
  EXPECT_THAT(Described(spec.modules[4]),
              ElementsAre("ln_f.weight 12 no decay", "ln_f.bias 12 no decay"));
}

TEST(Gpt2SpecTest, TakesTheInnerWidthFromTheConfig) {
  Gpt2Config config = kSpecConfig;
  config.n_inner = 7;
  const zero::ModuleSpec layer = Gpt2Spec(config).modules[2];
  EXPECT_THAT(layer.tensors[8].shape, ElementsAre(12, 7));
  EXPECT_THAT(layer.tensors[10].shape, ElementsAre(7, 12));
}

TEST(Gpt2SpecTest, UsesAllModulesForwardThenTheHeadThenTheLayersBackward) {
  const zero::ModelSpec spec = Gpt2Spec(kSpecConfig);
  std::vector<std::string> uses;
  for (const zero::ModuleUse& use : spec.step) {
    uses.push_back(spec.modules[offload::Index(use.module)].name + (use.backward ? " B" : " F"));
  }
  EXPECT_THAT(uses,
              ElementsAre("wte F", "wpe F", "h.0 F", "h.1 F", "ln_f F", "wte B", "h.1 B", "h.0 B"));
}

std::vector<float> Initial(const zero::ModelSpec& spec, const zero::TensorSource& source,
                           const std::string& name) {
  for (size_t m = 0; m < spec.modules.size(); ++m) {
    for (size_t t = 0; t < spec.modules[m].tensors.size(); ++t) {
      const zero::TensorSpec& tensor = spec.modules[m].tensors[t];
      if (tensor.name != name) continue;
      std::vector<float> values(tensor.elements());
      EXPECT_TRUE(source(static_cast<ModuleId>(m), t, 0, values).ok());
      return values;
    }
  }
  ADD_FAILURE() << "no tensor " << name;
  return {};
}

double Deviation(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += double{value} * value;
  return std::sqrt(sum / static_cast<double>(values.size()));
}

TEST(Gpt2InitializationTest, ScalesEachKindOfTensorAsGpt2Does) {
  Gpt2Config config = kSpecConfig;
  config.n_embd = 64;
  const zero::ModelSpec spec = Gpt2Spec(config);
  const zero::TensorSource source = Gpt2Initialization(config, 1);
  const auto deviation = [&](const char* name) { return Deviation(Initial(spec, source, name)); };
  EXPECT_NEAR(deviation("wte.weight"), 0.02, 0.001);
  EXPECT_NEAR(deviation("wpe.weight"), 0.02, 0.002);
  EXPECT_NEAR(deviation("h.0.attn.c_attn.weight"), 0.02, 0.001);
  EXPECT_NEAR(deviation("h.1.mlp.c_fc.weight"), 0.02, 0.001);
  EXPECT_NEAR(deviation("h.0.attn.c_proj.weight"), 0.01, 0.0005);  // 0.02 / sqrt(2 · 2 layers)
  EXPECT_NEAR(deviation("h.1.mlp.c_proj.weight"), 0.01, 0.0005);
  for (const zero::ModuleSpec& module : spec.modules) {
    for (const zero::TensorSpec& tensor : module.tensors) {
      if (tensor.group == offload::kDecay) continue;
      const float expected = tensor.name.ends_with(".weight") ? 1.0F : 0.0F;
      EXPECT_THAT(Initial(spec, source, tensor.name), ::testing::Each(expected)) << tensor.name;
    }
  }
}

TEST(Gpt2InitializationTest, MakesAnyRangeOfATensorOnItsOwn) {
  const zero::TensorSource source = Gpt2Initialization(kSpecConfig, 3);
  const std::vector<float> whole = Initial(Gpt2Spec(kSpecConfig), source, "wte.weight");
  std::vector<float> part(101);
  ASSERT_TRUE(source(ModuleId{0}, 0, 37, part).ok());
  EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + 37));
}

TEST(Gpt2InitializationTest, GivesEverySeedAndTensorItsOwnNumbers) {
  const zero::ModelSpec spec = Gpt2Spec(kSpecConfig);
  std::set<float> firsts;
  size_t drawn = 0;
  for (const uint64_t seed : {1, 2}) {
    const zero::TensorSource source = Gpt2Initialization(kSpecConfig, seed);
    for (const zero::ModuleSpec& module : spec.modules) {
      for (const zero::TensorSpec& tensor : module.tensors) {
        if (tensor.group != offload::kDecay) continue;
        firsts.insert(Initial(spec, source, tensor.name).front());
        ++drawn;
      }
    }
  }
  EXPECT_EQ(firsts.size(), drawn);
}

}  // namespace
}  // namespace penstock::train
