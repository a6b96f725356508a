// Which sizes do not suit a GPU.
#include "sizing/quantization.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace penstock::train {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

ModelShape HeadedGpt(uint64_t h, uint64_t heads = 0) {
  ModelShape shape = ParseModelShape(fmt::format("gpt2:h={},l=72,v=250880,s=2048", h)).value();
  shape.heads = heads;
  shape.kv_heads = heads;
  shape.head_width = heads == 0 ? 0 : h / heads;
  return shape;
}

TEST(QuantizationTest, SizesThatSuitGiveNoHint) {
  for (const uint64_t h : {13824, 14336, 13312, 12288, 16384, 20480}) {
    EXPECT_THAT(QuantizationHints(HeadedGpt(h), 8), IsEmpty()) << h;
  }
  EXPECT_THAT(QuantizationHints(HeadedGpt(14336, 112), 8), IsEmpty());
}

TEST(QuantizationTest, A14400BreaksAllThreeRules) {
  EXPECT_THAT(QuantizationHints(HeadedGpt(14400, 96), 8),
              ElementsAre("h = 14400 is no multiple of 128 (64 left): matrix products are slower",
                          "h/TP = 1800 is no multiple of 64 (8 left): matrix products are slower",
                          HasSubstr("a head's width, 150, is no multiple of 8")));
}

TEST(QuantizationTest, HeadsOf108AreNamedWithWhatTheyCost) {
  EXPECT_THAT(QuantizationHints(HeadedGpt(13824, 128), 8),
              ElementsAre(HasSubstr("33 to 42 % longer")));
}

TEST(QuantizationTest, WavesFillTheSourcesSharesOf108Multiprocessors) {
  struct Case {
    uint64_t h;
    double one, four;
  };
  for (const Case& c : std::vector<Case>{{14400, 0.855, 0.976},
                                         {13824, 0.923, 0.980},
                                         {14336, 0.851, 0.971},
                                         {13312, 0.963, 0.976},
                                         {12288, 0.889, 0.967}}) {
    EXPECT_NEAR(WaveEfficiency(HeadedGpt(c.h), {.tensor = 8, .micro_batch = 1}), c.one, 0.0006)
        << c.h;
    EXPECT_NEAR(WaveEfficiency(HeadedGpt(c.h), {.tensor = 8, .micro_batch = 4}), c.four, 0.0006)
        << c.h;
  }
}

TEST(QuantizationTest, OneTileOnOneMultiprocessorIsFull) {
  // 256 tokens, and matrices of 128 columns each: 3 + 1 + 4 + 1 tiles on one multiprocessor.
  EXPECT_EQ(WaveEfficiency(HeadedGpt(128), {.sequence = 256, .multiprocessors = 1}), 1);
  EXPECT_EQ(WaveEfficiency(HeadedGpt(128), {.sequence = 128, .multiprocessors = 1}), 0.5);
}

}  // namespace
}  // namespace penstock::train
