// The first number of a step that is not finite is found, and named.
#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <string>

#include "tests/train/models/gpt2_rig.h"

namespace penstock::train {
namespace {

using Finding = CheckedOperators::Finding;
using Role = CheckedOperators::Role;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kMaxFloat = std::numeric_limits<float>::max();

const Gpt2Config kSearched = {.vocab_size = 13,
                              .n_positions = 6,
                              .n_embd = 8,
                              .n_layer = 2,
                              .n_head = 2,
                              .initializer_range = 0.3};
const BatchShape kSearchedShape = {.micro_batch = 2, .micro_batches = 2, .sequence = 5};

class SearchRig : public Gpt2Rig {
 public:
  SearchRig() : Gpt2Rig(kSearched, kSearchedShape) {}

  std::optional<Finding> Search(const Tokens& tokens, float gradient_limit = kMaxFloat) {
    device::Stream& stream = engine->compute_stream();
    checked->BeginSearch(
        stream, [this] { return model->place(); }, gradient_limit);
    EXPECT_TRUE(Enqueue(tokens).ok());
    const auto found = checked->EndSearch(stream);
    EXPECT_TRUE(found.ok());
    EXPECT_TRUE(model->Loss().ok());
    engine->FinishStep();
    return *found;
  }
  std::string Name(const Finding& finding) {
    return NameOf(TensorOf(finding, session->layout()), session->layout().model);
  }
};

Tokens SearchedTokens() { return TestTokens(kSearched.vocab_size, 20, 1); }

TEST(Gpt2SearchTest, NothingIsFoundInAStepThatIsFinite) {
  SearchRig rig;
  EXPECT_FALSE(rig.Search(SearchedTokens()));
}

TEST(Gpt2SearchTest, AWeightThatIsNotFiniteIsFoundWhereItIsFirstUsed) {
  const std::pair<const char*, const char*> kCases[] = {
      {"wpe.weight", "wte"},
      {"h.0.ln_1.bias", "h.0.ln_1"},
      {"h.0.attn.c_attn.weight", "h.0.attn.c_attn"},
      {"h.1.attn.c_proj.bias", "h.1.attn.c_proj"},
      {"h.1.mlp.c_fc.weight", "h.1.mlp.c_fc"},
      {"h.1.mlp.c_proj.weight", "h.1.mlp.c_proj"},
      {"ln_f.weight", "ln_f"},
  };
  for (const auto& [tensor, output] : kCases) {
    SearchRig rig;
    rig.engine->weights(tensor)[3] = kInfinity;
    const auto found = rig.Search(SearchedTokens());
    ASSERT_TRUE(found) << tensor;
    EXPECT_EQ(rig.Name(*found), output);
    EXPECT_FALSE(found->place.backward) << tensor;
    EXPECT_EQ(found->role, Role::kOutput) << tensor;
    EXPECT_EQ(found->place.micro_batch, 0U);
  }
}

TEST(Gpt2SearchTest, TheRowOfTheDataAndTheMicroBatchAreThoseThatUseIt) {
  SearchRig rig;
  Tokens tokens = SearchedTokens();
  // A token that occurs once, in the second micro-batch.
  for (int32_t& token : tokens.inputs) token = token % 12;
  tokens.inputs[10 + 7] = 12;
  rig.engine->weights("wte.weight")[12 * 8 + 5] = kInfinity;
  const auto found = rig.Search(tokens);
  ASSERT_TRUE(found);
  EXPECT_EQ(rig.Name(*found), "wte");
  EXPECT_EQ(found->place.micro_batch, 1U);
  EXPECT_EQ(found->row, 7U);
  EXPECT_EQ(found->column, 5U);
}

TEST(Gpt2SearchTest, AGradientBeyondTheLimitOfItsDTypeIsFoundInBackward) {
  SearchRig rig;
  const auto found = rig.Search(SearchedTokens(), /*gradient_limit=*/1e-30F);
  ASSERT_TRUE(found);
  EXPECT_EQ(rig.Name(*found), "wte.weight");
  EXPECT_EQ(found->role, Role::kParameterGradient);
  EXPECT_TRUE(found->place.backward);
}

TEST(Gpt2SearchTest, ASearchThatHasEndedLooksAtNothing) {
  SearchRig rig;
  EXPECT_FALSE(rig.Search(SearchedTokens()));
  rig.engine->weights("h.0.ln_1.bias")[0] = kInfinity;
  rig.Step(SearchedTokens());
  rig.engine->weights("h.0.ln_1.bias")[0] = 0;
  EXPECT_FALSE(rig.Search(SearchedTokens()));
}

}  // namespace
}  // namespace penstock::train
