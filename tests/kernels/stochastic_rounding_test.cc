// The stochastic rounding of bf16 moments: unbiased, and a function of key and element alone.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/state/adam.h"

namespace penstock::kernels {
namespace {

constexpr uint64_t kKey = 0x0123'4567'89ab'cdefU;
constexpr uint64_t kMany = 1 << 20;

uint32_t LowerHalf(uint64_t key, uint64_t element) { return RoundingBits(key, element) & 0xffff; }
uint32_t UpperHalf(uint64_t key, uint64_t element) { return RoundingBits(key, element) >> 16; }

/// Whether `share` of kMany independent draws came up at a probability p, within 5 deviations.
void ExpectProbability(double share, double p) {
  EXPECT_NEAR(share, p, 5 * std::sqrt(p * (1 - p) / kMany)) << p;
}

TEST(StochasticRoundingTest, RoundsUpAsOftenAsTheValueIsNearTheUpperNeighbour) {
  for (const auto half : {LowerHalf, UpperHalf}) {
    for (const uint32_t below : {0x0001U, 0x1000U, 0x8000U, 0xc000U, 0xffffU}) {
      for (const uint32_t upper : {0x3f800000U, 0xbf800000U, 0x00010000U}) {
        uint64_t up = 0;
        for (uint64_t i = 0; i < kMany; ++i) {
          const float value = std::bit_cast<float>(upper | below);
          const uint32_t rounded = RoundStochastically(value, half(kKey, i)).bits;
          ASSERT_LE(rounded - (upper >> 16), 1U) << "a neighbour";
          up += rounded - (upper >> 16);
        }
        ExpectProbability(static_cast<double>(up) / kMany, below / 65536.0);
      }
    }
  }
}

TEST(StochasticRoundingTest, WhatBFloat16HoldsStaysAsItIs) {
  for (uint32_t bits = 0; bits < 1U << 16; ++bits) {
    const float value = ToFloat(BFloat16{static_cast<uint16_t>(bits)});
    for (const uint32_t random : {0U, 0x7fffU, 0xffffU}) {
      const BFloat16 rounded = RoundStochastically(value, random);
      if (std::isnan(value)) {
        ASSERT_TRUE(std::isnan(ToFloat(rounded)));
      } else {
        ASSERT_EQ(rounded.bits, bits);
      }
    }
  }
  EXPECT_TRUE(std::isnan(ToFloat(RoundStochastically(std::bit_cast<float>(0x7fffffffU), 0xffff))));
}

TEST(StochasticRoundingTest, ElementsKeysAndMomentsDrawIndependently) {
  const uint64_t next_key = kKey + 1, other_key = kKey ^ uint64_t { 1 } << 40;
  const auto upper = [](uint32_t random) { return random >= 0x8000; };
  uint64_t next_element = 0, keys = 0, other_keys = 0, moments = 0;
  for (uint64_t i = 0; i < kMany; ++i) {
    const bool drawn = upper(LowerHalf(kKey, i));
    next_element += drawn && upper(LowerHalf(kKey, i + 1));
    keys += drawn && upper(LowerHalf(next_key, i));
    other_keys += drawn && upper(LowerHalf(other_key, i));
    moments += drawn && upper(UpperHalf(kKey, i));
  }
  for (const uint64_t both : {next_element, keys, other_keys, moments}) {
    ExpectProbability(static_cast<double>(both) / kMany, 0.25);
  }
}

TEST(StochasticRoundingTest, AMomentThatMovesByLessThanHalfAUnitArrivesOnAverage) {
  constexpr uint64_t kElements = 4096;
  std::vector<float> weight(kElements, 1.0f);
  std::vector<BFloat16> exp_avg(kElements), exp_avg_sq(kElements, RoundToBFloat16(1.0f));
  const std::vector<float> gradient(kElements, 0.5f);
  const AdamHyperparameters hyper;
  for (uint64_t t = 1; t <= 500; ++t) {
    AdamUpdate(MakeAdamScalars(hyper, 1e-3, t, 1), {.weight = weight,
                                                    .exp_avg = exp_avg,
                                                    .exp_avg_sq = exp_avg_sq,
                                                    .rounding = {.key = t},
                                                    .gradient = gradient.data()});
  }
  double mean = 0;
  for (const BFloat16 v : exp_avg_sq) mean += ToFloat(v) / static_cast<double>(kElements);
  // v goes from 1 to 0.25 by a thousandth a step, where neighbours are two to eight times as far
  // apart: rounded to the nearest it would not move.
  const double exact = 0.25 + 0.75 * std::pow(hyper.beta2, 500.0);
  EXPECT_NEAR(mean, exact, 0.005 * exact);
}

TEST(StochasticRoundingTest, ATileInTheFlatIndexDrawsAsItsElementsDo) {
  constexpr uint64_t kElements = 100, kFirst = (uint64_t{1} << 32) - 50;
  std::vector<float> weight(kElements, 1.0f);
  std::vector<BFloat16> exp_avg(kElements), exp_avg_sq(kElements);
  const std::vector<float> gradient(kElements, 1.0f / 3);
  const AdamScalars scalars = MakeAdamScalars({}, 1e-3, 1, 1);
  AdamUpdate(scalars, {.weight = weight,
                       .exp_avg = exp_avg,
                       .exp_avg_sq = exp_avg_sq,
                       .rounding = {kKey, kFirst},
                       .gradient = gradient.data()});
  const float m = gradient[0] * scalars.one_minus_beta1;
  const float v = gradient[0] * gradient[0] * scalars.one_minus_beta2;
  for (uint64_t i = 0; i < kElements; ++i) {
    EXPECT_EQ(exp_avg[i].bits, RoundStochastically(m, LowerHalf(kKey, kFirst + i)).bits) << i;
    EXPECT_EQ(exp_avg_sq[i].bits, RoundStochastically(v, UpperHalf(kKey, kFirst + i)).bits) << i;
  }
}

}  // namespace
}  // namespace penstock::kernels
