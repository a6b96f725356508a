#include "base/activity.h"

#include <gtest/gtest.h>

#include <utility>

namespace penstock {
namespace {

using std::chrono::nanoseconds;

/// Returns when the clock has moved, so that what was busy meanwhile was busy for some time.
void LetTimePass() {
  const auto start = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() == start) {
  }
}

TEST(ActivityMeter, MeasuresNothingWhileNoThreadIsBusy) {
  const ActivityMeter meter;
  LetTimePass();
  const ActivityTotals totals = meter.Totals();
  EXPECT_EQ(totals.compute, nanoseconds(0));
  EXPECT_EQ(totals.io_wait, nanoseconds(0));
  EXPECT_EQ(totals.optimizer, nanoseconds(0));
  EXPECT_EQ(totals.update_hidden, nanoseconds(0));
}

TEST(ActivityMeter, UpdatesAreHiddenOnlyUnderCompute) {
  ActivityMeter meter;
  {
    const ActivityScope update(&meter, Lane::kUpdate);
    LetTimePass();
  }
  const ActivityTotals alone = meter.Totals();
  EXPECT_GT(alone.update, nanoseconds(0));
  EXPECT_EQ(alone.update_hidden, nanoseconds(0));
  EXPECT_EQ(alone.compute, nanoseconds(0));
  {
    const ActivityScope compute(&meter, Lane::kCompute);
    const ActivityScope update(&meter, Lane::kUpdate);
    LetTimePass();
  }
  const ActivityTotals both = meter.Totals();
  EXPECT_EQ(both.update_hidden, both.update - alone.update);
  EXPECT_GT(both.update_hidden, nanoseconds(0));
  EXPECT_GE(both.compute, both.update_hidden);
}

TEST(ActivityMeter, WaitingUnderComputeIsNoWait) {
  for (const auto& [lane, wait] : {std::pair(Lane::kDataWait, &ActivityTotals::io_wait),
                                   std::pair(Lane::kRanks, &ActivityTotals::comm_wait)}) {
    ActivityMeter meter;
    meter.Begin(Lane::kCompute);
    meter.Begin(lane);
    LetTimePass();
    meter.End(lane);
    meter.End(Lane::kCompute);
    EXPECT_EQ(meter.Totals().*wait, nanoseconds(0));
    meter.Begin(lane);
    LetTimePass();
    meter.End(lane);
    EXPECT_GT(meter.Totals().*wait, nanoseconds(0));
  }
}

TEST(ActivityMeter, ALaneIsBusyOnceHoweverManyAreInIt) {
  ActivityMeter meter;
  const auto start = std::chrono::steady_clock::now();
  meter.Begin(Lane::kOptimizer);
  meter.Begin(Lane::kOptimizer);
  LetTimePass();
  meter.End(Lane::kOptimizer);
  const nanoseconds one_left = meter.Totals().optimizer;
  LetTimePass();
  meter.End(Lane::kOptimizer);
  const nanoseconds total = meter.Totals().optimizer;
  EXPECT_GT(total, one_left) << "the lane is busy until the last one leaves";
  EXPECT_LE(total, std::chrono::steady_clock::now() - start) << "and is not counted twice";
}

TEST(ActivityMeter, TotalsCountOpenIntervals) {
  ActivityMeter meter;
  const ActivityScope compute(&meter, Lane::kCompute);
  LetTimePass();
  const nanoseconds first = meter.Totals().compute;
  EXPECT_GT(first, nanoseconds(0));
  LetTimePass();
  EXPECT_GT(meter.Totals().compute, first);
}

TEST(ActivityMeter, WhatIsAddedLateCountsWithWhatWasBusyThen) {
  ActivityMeter meter;
  const auto begin = std::chrono::steady_clock::now();
  meter.Begin(Lane::kUpdate);
  meter.Begin(Lane::kDataWait);
  LetTimePass();
  meter.End(Lane::kDataWait);
  meter.End(Lane::kUpdate);
  const auto end = std::chrono::steady_clock::now();
  EXPECT_GT(meter.Totals().io_wait, nanoseconds(0));
  meter.Add(Lane::kCompute, begin, end);
  const ActivityTotals totals = meter.Totals();
  EXPECT_EQ(totals.compute, end - begin);
  EXPECT_EQ(totals.io_wait, nanoseconds(0)) << "it computed while it seemed to wait";
  EXPECT_EQ(totals.update_hidden, totals.update);
}

TEST(ActivityMeter, AnIntervalMayBeAddedInPartsAndInAnyOrder) {
  ActivityMeter meter;
  const auto begin = std::chrono::steady_clock::now();
  LetTimePass();
  const auto middle = std::chrono::steady_clock::now();
  LetTimePass();
  const auto end = std::chrono::steady_clock::now();
  meter.Add(Lane::kCompute, middle, end);
  meter.Add(Lane::kCompute, begin, middle);
  meter.Add(Lane::kCompute, begin, middle);
  EXPECT_EQ(meter.Totals().compute, end - begin);
}

TEST(ActivityMeter, KeepsItsSumsWhenItForgetsMoments) {
  ActivityMeter meter;
  const auto begin = std::chrono::steady_clock::now();
  const nanoseconds length(1);
  for (size_t i = 0; i < 3 * ActivityMeter::kKept; ++i) {
    meter.Add(Lane::kCompute, begin + 2 * i * length, begin + (2 * i + 1) * length);
  }
  while (std::chrono::steady_clock::now() < begin + 6 * ActivityMeter::kKept * length) {
  }
  EXPECT_EQ(meter.Totals().compute, 3 * ActivityMeter::kKept * length);
}

TEST(ActivityScope, OfNoMeterDoesNothing) { const ActivityScope scope(nullptr, Lane::kCompute); }

TEST(ActivityMeterDeathTest, EndingWhatDidNotBeginIsABug) {
  ActivityMeter meter;
  EXPECT_DEATH(meter.End(Lane::kCompute), "ended more often than it began");
}

}  // namespace
}  // namespace penstock
