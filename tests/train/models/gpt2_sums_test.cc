// What a step adds up over its micro-batches: the numbers of each alone, in their order.
#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tests/train/models/gpt2_rig.h"
#include "train/models/gpt2.h"

namespace penstock::train {
namespace {

constexpr uint64_t kPositions = 64;
// The head of a micro-batch takes two chunks of rows.
const Gpt2Config kChunkedHead = {
    .vocab_size = 4099, .n_positions = kPositions, .n_embd = 16, .n_layer = 2, .n_head = 2};
constexpr uint64_t kMicroBatches = 4;
constexpr BatchShape kSummed = {
    .micro_batch = 4, .micro_batches = kMicroBatches, .sequence = kPositions};
constexpr uint64_t kTokensOfEach = kSummed.micro_batch * kSummed.sequence;
/// Of the vocabulary: tokens repeat within a micro-batch.
constexpr uint64_t kUsedTokens = 50;
// The numbers of a micro-batch alone are means over its own tokens: as these are a power of two,
// and so is the number of micro-batches, nothing is rounded on the way to those of the whole step.
static_assert(std::has_single_bit(kTokensOfEach) && std::has_single_bit(kMicroBatches));

Tokens TokensOf(const Tokens& all, uint64_t micro_batch) {
  const auto part = [&](const std::vector<int32_t>& tokens) {
    const auto from = std::span(tokens).subspan(micro_batch * kTokensOfEach, kTokensOfEach);
    return std::vector<int32_t>(from.begin(), from.end());
  };
  return {.inputs = part(all.inputs), .targets = part(all.targets)};
}

/// What was computed of one micro-batch alone: for each tensor one sum of gradients or, where two
/// uses of it give gradients, two.
struct Alone {
  double loss = 0;
  std::vector<std::vector<float>> first;
  std::vector<std::vector<float>> last;
};

Alone Compute(Gpt2Rig& rig, const Tokens& tokens) {
  Alone alone{.loss = rig.Step(tokens)};
  for (const std::string& name : rig.engine->tensor_names()) {
    const auto first = rig.engine->first_part(name);
    const auto last = rig.engine->gradients(name);
    alone.first.emplace_back(first.begin(), first.end());
    alone.last.emplace_back(last.begin(), last.end());
  }
  return alone;
}

void AddTo(std::vector<float>& sums, const std::vector<float>& of_own_mean) {
  for (size_t i = 0; i < of_own_mean.size(); ++i) {
    sums[i] += of_own_mean[i] / static_cast<float>(kMicroBatches);
  }
}

class Gpt2SumsTest : public ::testing::TestWithParam<DType> {};

TEST_P(Gpt2SumsTest, AStepIsTheOrderedSumOfItsMicroBatches) {
  const Tokens tokens = TestTokens(kUsedTokens, kMicroBatches * kTokensOfEach, 1);
  Gpt2Rig whole(kChunkedHead, kSummed, GetParam());
  const double loss = whole.Step(tokens);

  BatchShape one = kSummed;
  one.micro_batches = 1;
  Gpt2Rig rig(kChunkedHead, one, GetParam());
  rig.engine->KeepPartsApart();
  std::vector<Alone> alone;
  for (uint64_t m = 0; m < kMicroBatches; ++m) {
    alone.push_back(Compute(rig, TokensOf(tokens, m)));
  }

  double sum = 0;
  for (const Alone& of : alone) sum += of.loss * static_cast<double>(kTokensOfEach);
  EXPECT_EQ(loss, sum / static_cast<double>(kMicroBatches * kTokensOfEach));
  const std::vector<std::string> names = whole.engine->tensor_names();
  for (size_t t = 0; t < names.size(); ++t) {
    EXPECT_EQ(alone[0].first[t].empty(), names[t] != "wte.weight") << names[t];
    const std::span<const float> got = whole.engine->gradients(names[t]);
    std::vector<float> want(got.size());
    for (const Alone& of : alone) AddTo(want, of.first[t]);
    for (const Alone& of : alone) AddTo(want, of.last[t]);
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(want[i]))
          << names[t] << " [" << i << "]: " << got[i] << ", want " << want[i];
    }
  }
}

/// What a step computes: its loss and, for each tensor, its gradient.
struct Computed {
  double loss = 0;
  std::vector<std::vector<float>> gradients;

  bool operator==(const Computed&) const = default;
};

Computed StepOf(Gpt2Rig& rig, const Tokens& tokens) {
  Computed computed{.loss = rig.Step(tokens)};
  for (const std::string& name : rig.engine->tensor_names()) {
    const auto gradient = rig.engine->gradients(name);
    computed.gradients.emplace_back(gradient.begin(), gradient.end());
  }
  return computed;
}

TEST_P(Gpt2SumsTest, AStepOfFewerMicroBatchesIsThatOfAModelForSoMany) {
  for (const Tier home : {Tier::kDevice, Tier::kHost}) {
    BatchShape shape = kSummed;
    shape.checkpoint_home = home;
    Gpt2Rig growing(kChunkedHead, shape, GetParam());
    // Each number comes after a smaller and after a larger one.
    for (const uint64_t micro_batches : {1, 4, 2, 3, 3, 1, 2, 4, 3, 1}) {
      const Tokens tokens = TestTokens(kUsedTokens, micro_batches * kTokensOfEach, micro_batches);
      BatchShape just = shape;
      just.micro_batches = micro_batches;
      Gpt2Rig made_for_it(kChunkedHead, just, GetParam());
      EXPECT_EQ(StepOf(growing, tokens), StepOf(made_for_it, tokens))
          << micro_batches << " micro-batches, checkpoints on "
          << (home == Tier::kHost ? "the host" : "the device");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, Gpt2SumsTest, ::testing::Values(DType::kFloat32, DType::kBFloat16),
                         [](const auto& info) {
                           return info.param == DType::kFloat32 ? "fp32" : "bf16";
                         });

}  // namespace
}  // namespace penstock::train
