// A named GPT-2 has the parameters that train counts.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <random>
#include <string>
#include <vector>

#include "sizing/model_shape.h"
#include "train/models/gpt2.h"

namespace penstock::train {
namespace {

std::vector<zero::TensorSpec> TensorsOf(const Gpt2Config& config) {
  std::vector<zero::TensorSpec> tensors;
  for (const zero::ModuleSpec& module : Gpt2Spec(config).modules) {
    tensors.insert(tensors.end(), module.tensors.begin(), module.tensors.end());
  }
  return tensors;
}

TEST(Gpt2CountTest, ANamedGpt2HasTheParametersThatTrainCounts) {
  std::mt19937_64 random(2);
  const auto draw = [&](uint64_t most) { return 1 + random() % most; };
  for (int i = 0; i < 100; ++i) {
    Gpt2Config config{.vocab_size = draw(300),
                      .n_positions = draw(300),
                      .n_embd = draw(80),
                      .n_layer = draw(5),
                      .n_head = 1,
                      .n_inner = draw(200)};
    const std::string text =
        fmt::format("gpt2:h={},l={},v={},s={},i={}", config.n_embd, config.n_layer,
                    config.vocab_size, config.n_positions, config.n_inner);
    const ModelShape shape = ParseModelShape(text).value();
    std::vector<NamedElements> sizes;
    uint64_t total = 0;
    const std::vector<zero::TensorSpec> tensors = TensorsOf(config);
    for (const zero::TensorSpec& tensor : tensors) {
      uint64_t elements = 1;
      for (const uint64_t extent : tensor.shape) elements *= extent;
      sizes.push_back({tensor.name, elements});
      total += elements;
    }
    EXPECT_EQ(CountParameters(shape).total(), total) << text;
    EXPECT_EQ(LargestModule(shape), LargestModule(sizes)) << text;
  }
}

}  // namespace
}  // namespace penstock::train
