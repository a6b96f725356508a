#include "train/tune/choice.h"

#include <gmock/gmock.h>

#include <vector>

#include "base/median.h"
#include "tests/train/tune/support.h"

namespace penstock::train {
namespace {

using aio::EngineKind;
using ::testing::DoubleEq;
using ::testing::ElementsAre;

PointSummary NotMeasured() { return {.point = MakePoint(EngineKind::kUring, 1_MiB, 1)}; }

PointSummary WithCpu(PointSummary row, double cpu_s_per_gb) {
  for (DirectionSummary& direction : row.directions) direction.cpu_s_per_gb = cpu_s_per_gb;
  return row;
}

PointSummary WithSpread(PointSummary row, double spread) {
  for (DirectionSummary& direction : row.directions) {
    direction.gbps_max = direction.gbps * (1 + spread / 2);
    direction.gbps_min = direction.gbps * (1 - spread / 2);
  }
  return row;
}

TEST(Summary, OneRoundThatRanAtBurstSpeedDoesNotCount) {
  PointProbes probes{.point = MakePoint(EngineKind::kUring, 1_MiB, 32)};
  for (std::vector<Probe>& rounds : probes.probes) {
    rounds = {{.gbps = 3.0, .median_us = 1, .p99_us = 10, .cpu_s_per_gb = 0.1},
              {.gbps = 0.84, .median_us = 3, .p99_us = 30, .cpu_s_per_gb = 0.3},
              {.gbps = 0.86, .median_us = 2, .p99_us = 20, .cpu_s_per_gb = 0.2}};
  }
  const PointSummary summary = Summarize(probes);
  EXPECT_THAT(summary.round_gbps, ElementsAre(DoubleEq(3.0), DoubleEq(0.84), DoubleEq(0.86)));
  for (const DirectionSummary& direction : summary.directions) {
    EXPECT_EQ(direction.gbps, 0.86);
    EXPECT_EQ(direction.gbps_min, 0.84);
    EXPECT_EQ(direction.gbps_max, 3.0);
    EXPECT_EQ(direction.median_us, 2);
    EXPECT_EQ(direction.p99_us, 20);
    EXPECT_EQ(direction.cpu_s_per_gb, 0.2);
  }
}

TEST(Summary, WhatWasNotMeasuredSaysWhy) {
  PointProbes probes{.point = MakePoint(EngineKind::kLibaio, 1_MiB, 32)};
  EXPECT_FALSE(Summarize(probes).measured());
  EXPECT_NE(Summarize(probes).reason, "");
  probes.unavailable = "no libaio here";
  EXPECT_EQ(Summarize(probes).reason, "no libaio here");
}

TEST(CombinedGbps, IsTheSpeedOfAJobThatMovesEquallyMuchInEachWay) {
  PointSummary row = Row(1_MiB, 32, 0);
  row.directions[0].gbps = 4;
  row.directions[1].gbps = 1;
  row.directions[2].gbps = 2;
  EXPECT_DOUBLE_EQ(CombinedGbps(row), 3 / (1 / 4.0 + 1 / 1.0 + 1 / 2.0));
  EXPECT_EQ(CombinedGbps(NotMeasured()), 0);
}

TEST(ChoosePoint, IsTheSmallestInFlightWithinTwoPercent) {
  const std::vector<PointSummary> grid = {Row(1_MiB, 4, 1.90), Row(1_MiB, 8, 1.97),
                                          Row(1_MiB, 16, 1.96), Row(4_MiB, 16, 2.00)};
  const std::optional<GridChoice> choice = ChoosePoint(grid);
  ASSERT_TRUE(choice.has_value());
  EXPECT_EQ(choice->ceiling, 3U);
  EXPECT_EQ(choice->recommended, 1U);
}

TEST(ChoosePoint, OfEqualBytesInFlightTakesTheSmallerDepth) {
  const std::vector<PointSummary> grid = {Row(256_KiB, 32, 2.0), Row(1_MiB, 8, 1.99),
                                          Row(512_KiB, 16, 2.0)};
  EXPECT_EQ(ChoosePoint(grid)->recommended, 1U);
}

TEST(ChoosePoint, ASpeedBelowTwoPercentIsNotCloseEnough) {
  EXPECT_EQ(ChoosePoint(std::vector{Row(64_KiB, 1, 1.959), Row(1_MiB, 8, 2.0)})->recommended, 1U);
  EXPECT_EQ(ChoosePoint(std::vector{Row(64_KiB, 1, 1.961), Row(1_MiB, 8, 2.0)})->recommended, 0U);
}

TEST(ChoosePoint, IgnoresWhatWasNotMeasured) {
  EXPECT_EQ(ChoosePoint(std::vector{NotMeasured(), Row(1_MiB, 8, 2.0)})->recommended, 1U);
  EXPECT_FALSE(ChoosePoint(std::vector{NotMeasured()}).has_value());
  EXPECT_FALSE(ChoosePoint({}).has_value());
}

TEST(ChooseEngine, TakesTheFastest) {
  const std::vector<PointSummary> rows = {WithCpu(Row(1_MiB, 8, 1.5), 0.01),
                                          WithCpu(Row(1_MiB, 8, 2.0, EngineKind::kThreads), 0.2)};
  EXPECT_EQ(ChooseEngine(rows), 1U);
}

TEST(ChooseEngine, OfEquallyFastOnesTakesTheOneThatCostsLeastCpuTime) {
  const std::vector<PointSummary> rows = {WithCpu(Row(1_MiB, 8, 2.0), 0.06),
                                          WithCpu(Row(1_MiB, 8, 1.97), 0.05), NotMeasured()};
  EXPECT_EQ(ChooseEngine(rows), 1U);
  EXPECT_FALSE(ChooseEngine(std::vector{NotMeasured()}).has_value());
}

PointSummary Rounds(std::vector<double> gbps, double cpu_s_per_gb) {
  PointSummary row = WithCpu(Row(1_MiB, 8, MedianOf(gbps)), cpu_s_per_gb);
  row.round_gbps = std::move(gbps);
  return row;
}

TEST(ChooseEngine, DoesNotTakeNoiseForSpeed) {
  EXPECT_EQ(ChooseEngine(std::vector{Rounds({2.0, 1.9, 1.8, 1.85, 1.95}, 0.05),
                                     Rounds({1.8, 2.0, 2.05, 2.0, 1.8}, 0.2)}),
            0U);
  // The same difference where the rounds agree.
  EXPECT_EQ(ChooseEngine(std::vector{Rounds({1.9, 1.9, 1.9, 1.9, 1.9}, 0.05),
                                     Rounds({2.0, 2.0, 2.0, 2.0, 2.0}, 0.2)}),
            1U);
}

TEST(ChooseEngine, ComparesWithinRoundsWhereTheDriveIsThrottledAfterABurst) {
  // The rounds of each differ by 250 %, and the third one has half the speed in each of them.
  const std::vector<PointSummary> rows = {Rounds({3.0, 0.86, 0.85, 0.84, 0.85}, 0.06),
                                          Rounds({3.0, 0.85, 0.85, 0.85, 0.84}, 0.05),
                                          Rounds({1.5, 0.43, 0.42, 0.42, 0.42}, 0.01)};
  EXPECT_EQ(ChooseEngine(rows), 1U);
}

TEST(ChooseEngine, NeverTakesHalfTheSpeedHoweverMuchTheRoundsDiffer) {
  EXPECT_EQ(ChooseEngine(std::vector{Rounds({1.0, 9.0, 2.0, 3.0, 2.0}, 0.2),
                                     Rounds({9.0, 1.0, 1.0, 1.0, 9.0}, 0.2),
                                     Rounds({0.9, 0.9, 1.0, 1.0, 1.0}, 0.01)}),
            0U);
}

TEST(ChooseEngine, ComparesTheRoundsThatAllRowsHave) {
  // The time was over in the second round, which ran at burst speed.
  EXPECT_EQ(ChooseEngine(std::vector{Rounds({1.0}, 0.01), Rounds({2.0, 9.0}, 0.2)}), 1U);
}

TEST(TypicalSpread, IsTheMedianOverConfigurations) {
  EXPECT_NEAR(TypicalSpread(std::vector{WithSpread(Row(1_MiB, 1, 1), 0.1),
                                        WithSpread(Row(1_MiB, 2, 2), 0.2),
                                        WithSpread(Row(1_MiB, 4, 3), 3.0), NotMeasured()}),
              0.2, 1e-9);
  EXPECT_EQ(TypicalSpread({}), 0);
}

}  // namespace
}  // namespace penstock::train
