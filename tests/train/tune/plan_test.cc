#include "train/tune/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <set>
#include <vector>

namespace penstock::train {
namespace {

using aio::EngineKind;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TunePlan Plan(TuneScale scale, std::optional<Bytes> size = std::nullopt,
              EngineKind engine = EngineKind::kUring) {
  const Result<TunePlan> plan = MakePlan(std::move(scale), size, engine);
  EXPECT_TRUE(plan.ok()) << (plan.ok() ? "" : plan.error().message);
  return plan.ok() ? *plan : TunePlan{};
}

std::vector<int> ThreadCounts(const std::vector<TunePoint>& points) {
  std::vector<int> counts;
  for (const TunePoint& point : points) counts.push_back(point.thread_count);
  return counts;
}

TEST(FullScale, CoversTheRangesThatTheManualPromises) {
  const TuneScale scale = FullScale();
  EXPECT_EQ(scale.block_sizes.front(), 64_KiB);
  EXPECT_EQ(scale.block_sizes.back(), 16_MiB);
  EXPECT_EQ(scale.block_sizes.size(), 9U);
  EXPECT_THAT(scale.queue_depths, ElementsAre(1, 2, 4, 8, 16, 32, 64, 128));
  EXPECT_GE(scale.rounds, 3);
}

TEST(Scales, EndInTimeEvenWhereEveryProbeLastsAsLongAsItMay) {
  for (const auto& [scale, seconds] : {std::pair(FullScale(), 300.0), {QuickScale(), 30.0}}) {
    EXPECT_LT(scale.grid_end, scale.engines_end);
    // The last turn may begin at the end, and its three probes last as long as they may.
    EXPECT_LT((scale.engines_end + 3 * scale.probe.time).count(), seconds);
  }
}

TEST(Plan, HoldsEveryPointOfTheScaleEitherInTheGridOrLeftOut) {
  const TunePlan plan = Plan(FullScale());
  EXPECT_EQ(plan.grid.size() + plan.left_out.size(), 72U);
  for (const TunePoint& point : plan.grid) EXPECT_LE(point.in_flight(), plan.in_flight_limit);
  for (const TunePoint& point : plan.left_out) EXPECT_GT(point.in_flight(), plan.in_flight_limit);
}

TEST(Plan, MovesAtLeastTwiceWhatIsInFlightAndNeverMeetsItself) {
  for (const Bytes size : {1_MiB, 16_MiB, 100_MiB, 4_GiB}) {
    const TunePlan plan = Plan(FullScale(), size);
    ASSERT_FALSE(plan.grid.empty());
    for (const TunePoint& point : plan.grid) {
      EXPECT_LE(point.in_flight() * 2, plan.scale.probe.bytes);
      EXPECT_LE(point.in_flight() * 4, plan.scale.file_size);
    }
    EXPECT_LE(plan.scale.probe.bytes, plan.scale.file_size);
  }
}

TEST(Plan, TakesTheSizeThatWasAskedForInWholeMebibytes) {
  EXPECT_EQ(Plan(FullScale()).scale.file_size, FullScale().file_size);
  EXPECT_EQ(Plan(FullScale(), 5_MiB).scale.file_size, 5_MiB);
  EXPECT_EQ(Plan(FullScale(), 5_MiB + 1_B).scale.file_size, 6_MiB);
}

TEST(Plan, RefusesASizeInWhichNothingCanBeMeasured) {
  for (const Bytes size : {0_B, 1_MiB - 1_B}) {
    const Result<TunePlan> plan = MakePlan(FullScale(), size, EngineKind::kUring);
    ASSERT_FALSE(plan.ok());
    EXPECT_EQ(plan.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(plan.error().message, HasSubstr("--size"));
  }
}

TEST(Plan, GivesTheThreadEngineAThreadForEachBlockInFlight) {
  for (const TunePoint& point : Plan(FullScale(), {}, EngineKind::kThreads).grid) {
    EXPECT_EQ(point.thread_count, std::min(point.queue_depth, 64));
  }
  for (const TunePoint& point : Plan(FullScale()).grid) EXPECT_EQ(point.thread_count, 1);
}

TEST(EnginePoints, AreEachEngineOnceAndTheThreadEngineByThreads) {
  const std::array engines = {EngineKind::kUring, EngineKind::kLibaio, EngineKind::kThreads};
  const std::vector<TunePoint> points = EnginePoints(engines, 1_MiB, 8);
  EXPECT_THAT(ThreadCounts(points), ElementsAre(1, 1, 1, 2, 4, 8));
  EXPECT_EQ(points[0].engine, EngineKind::kUring);
  EXPECT_EQ(points[1].engine, EngineKind::kLibaio);
  EXPECT_EQ(points[5].engine, EngineKind::kThreads);
  const std::array threads = {EngineKind::kThreads};
  EXPECT_THAT(ThreadCounts(EnginePoints(threads, 1_MiB, 128)), ElementsAre(1, 2, 4, 8, 16, 32, 64));
  EXPECT_THAT(ThreadCounts(EnginePoints(threads, 1_MiB, 1)), ElementsAre(1));
}

TEST(RoundOrder, HasEachConfigurationOnceInEachRound) {
  for (const size_t count : {0U, 1U, 2U, 57U}) {
    for (int round = 0; round < 5; ++round) {
      const std::vector<size_t> order = RoundOrder(count, round);
      EXPECT_EQ(order.size(), count);
      EXPECT_EQ(std::set<size_t>(order.begin(), order.end()).size(), count);
      EXPECT_TRUE(std::ranges::all_of(order, [count](size_t index) { return index < count; }));
    }
  }
}

TEST(RoundOrder, IsReversedEveryOtherRoundSoThatFirstBecomesLast) {
  for (const int round : {0, 2}) {
    std::vector<size_t> reversed = RoundOrder(57, round + 1);
    std::ranges::reverse(reversed);
    EXPECT_EQ(RoundOrder(57, round), reversed);
  }
  EXPECT_NE(RoundOrder(57, 0), RoundOrder(57, 2));
}

TEST(RoundOrder, IsNotTheOrderOfTheTable) {
  const std::vector<size_t> order = RoundOrder(57, 0);
  EXPECT_FALSE(std::ranges::is_sorted(order));
  EXPECT_FALSE(std::ranges::is_sorted(order, std::greater{}));
}

TEST(MostWritten, CountsTheFileAndWhatTheProbesMayWrite) {
  TuneScale scale = QuickScale();
  scale.file_size = 8_MiB;
  scale.block_sizes = {64_KiB};
  scale.queue_depths = {1, 4};
  scale.rounds = 3;
  scale.probe.bytes = 2_MiB;
  // Two points and one engine, three rounds: 2 MiB of writing and half of 2 MiB of both.
  EXPECT_EQ(MostWritten(Plan(scale), 1), 8_MiB + 3 * 3 * 3_MiB);
}

TEST(BlockText, IsShort) {
  EXPECT_EQ(BlockText(64_KiB), "64 KiB");
  EXPECT_EQ(BlockText(512_KiB), "512 KiB");
  EXPECT_EQ(BlockText(16_MiB), "16 MiB");
}

}  // namespace
}  // namespace penstock::train
