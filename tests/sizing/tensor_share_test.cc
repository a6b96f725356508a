// What a GPU holds under tensor parallelism.
#include "sizing/tensor_share.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "tests/sizing/support.h"

namespace penstock::train {
namespace {

TEST(TensorShareTest, StagesOfA104BHaveTheSourcesBytes) {
  const TensorShare share = ShareOf(Gpt(11600, 64, 50257), 4);
  EXPECT_EQ(share.embedding, 145745300);
  EXPECT_EQ(share.layer, 403717700);
  EXPECT_EQ(share.Stage(2, true), 953180700);
  EXPECT_EQ(share.Stage(2, true) * kMixedPrecisionBytes, 17157252600);
  EXPECT_EQ(share.Stage(2, false), 807435400);
  EXPECT_EQ(share.Stage(2, false) * kMixedPrecisionBytes, 14533837200);
}

TEST(TensorShareTest, StagesOfA206BHaveTheSourcesBytes) {
  const ModelShape shape = Gpt(13312, 96, 150257);
  EXPECT_EQ(ShareOf(shape, 4).embedding, 500055296);
  EXPECT_EQ(ShareOf(shape, 4).layer, 531671296);
  EXPECT_EQ(ShareOf(shape, 4).Stage(4, false) * kMixedPrecisionBytes, 38280333312);
  EXPECT_EQ(ShareOf(shape, 2).layer, 1063342592);
  EXPECT_EQ(ShareOf(shape, 2).layer * kMixedPrecisionBytes, 19140166656);
}

TEST(TensorShareTest, EightGpusShareLargeModelsAsTheSourceSays) {
  struct Case {
    uint64_t h, v;
    double embedding, layer;
  };
  for (const Case& c : std::vector<Case>{{12288, 50257, 1.39, 4.08},
                                         {16384, 50257, 1.85, 7.25},
                                         {20480, 50257, 2.32, 11.33},
                                         {14336, 150257, 4.85, 5.55},
                                         {13312, 150257, 4.50, 4.79}}) {
    const TensorShare share = ShareOf(Gpt(c.h, 80, c.v), 8);
    EXPECT_NEAR(static_cast<double>(share.embedding * kMixedPrecisionBytes) / 1e9, c.embedding,
                0.005);
    EXPECT_NEAR(static_cast<double>(share.layer * kMixedPrecisionBytes) / 1e9, c.layer, 0.005);
  }
}

TEST(TensorShareTest, TextAndJsonSayTheSame) {
  const std::vector<uint64_t> tensors = {1, 8};
  const ModelShape shape = Gpt(12288, 96, 50257);
  EXPECT_EQ(TensorShareText(shape, tensors),
            "Bytes per GPU at 18 bytes a parameter, by tensor parallelism (GB: 10^9 bytes)\n"
            "  TP | embedding |     layer\n"
            "   1 |   11.12GB |   32.62GB\n"
            "   8 |    1.39GB |    4.08GB\n");
  const nlohmann::json list = TensorShareJson(shape, tensors);
  EXPECT_EQ(list[1]["tensor"], 8);
  EXPECT_EQ(list[0]["embedding_bytes"], 11116044288);
  EXPECT_EQ(list[0]["layer_parameters"], 12ULL * 12288 * 12288 + 13 * 12288);
}

}  // namespace
}  // namespace penstock::train
