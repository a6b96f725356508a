// How the batch grows: Megatron's rule, exactly.
#include "sizing/batch_rampup.h"

#include <gmock/gmock.h>

#include <vector>

namespace penstock::train {
namespace {

using ::testing::ElementsAre;

constexpr uint64_t kMaxPower = uint64_t{1} << 63;

/// What the first steps take.
std::vector<uint64_t> Batches(const BatchRampup& rampup, size_t steps) {
  std::vector<uint64_t> batches;
  uint64_t consumed = 0;
  while (batches.size() < steps) {
    batches.push_back(rampup.BatchAfter(consumed));
    consumed += batches.back();
  }
  return batches;
}

/// How many steps begin before `samples` were taken, and how many samples these take.
struct Ramp {
  uint64_t steps = 0;
  uint64_t consumed = 0;
};
Ramp RampOf(const BatchRampup& rampup, uint64_t samples) {
  Ramp ramp;
  for (; ramp.consumed < samples; ++ramp.steps) ramp.consumed += rampup.BatchAfter(ramp.consumed);
  return ramp;
}

TEST(BatchRampup, GrowsByMegatronsRule) {
  constexpr uint64_t kSamples = 9'765'625;
  const std::vector<uint64_t> consumed = {0,         76'895,    100'000,  1'000'000,
                                          5'000'000, 9'765'624, kSamples, kMaxPower};
  const auto batches = [&](const BatchRampup& rampup) {
    std::vector<uint64_t> found;
    for (const uint64_t c : consumed) found.push_back(rampup.BatchAfter(c));
    return found;
  };
  const BatchRampup from_16(2048, BatchGrowth{16, 16, kSamples});
  EXPECT_THAT(batches(from_16), ElementsAre(16, 32, 32, 224, 1056, 2032, 2048, 2048));
  EXPECT_EQ(RampOf(from_16, kSamples).steps, 26'076U);
  const BatchRampup from_384(2048, BatchGrowth{384, 16, kSamples});
  EXPECT_THAT(batches(from_384), ElementsAre(384, 384, 400, 544, 1232, 2032, 2048, 2048));
  EXPECT_EQ(RampOf(from_384, kSamples).steps, 9'926U);
}

TEST(BatchRampup, AnIncrementBeginsWithTheFirstWholeSampleAtOrAfterItsShare) {
  // Three increments of 10 / 3 samples each.
  const BatchRampup rampup(4, BatchGrowth{1, 1, 10});
  const std::vector<uint64_t> after = {1, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4};
  for (uint64_t c = 0; c < after.size(); ++c) EXPECT_EQ(rampup.BatchAfter(c), after[c]) << c;
  // 0.1 is no binary fraction: a share of 30 / 300 samples is reached exactly all the same.
  const BatchRampup fine(301, BatchGrowth{1, 1, 30});
  for (uint64_t c = 0; c <= 30; ++c) EXPECT_EQ(fine.BatchAfter(c), 1 + 10 * c) << c;
}

TEST(BatchRampup, WithoutOneEveryStepTakesTheBatch) {
  for (const BatchRampup& rampup : {BatchRampup(7), BatchRampup(7, BatchGrowth{7, 3, 100}),
                                    BatchRampup(7, BatchGrowth{1, 2, 0})}) {
    EXPECT_THAT(Batches(rampup, 3), ElementsAre(7, 7, 7));
    EXPECT_EQ(rampup.BatchAfter(kMaxPower), 7U);
    EXPECT_EQ(rampup.StepsWithin(6), 0U);
    EXPECT_EQ(rampup.StepsWithin(7), 1U);
    EXPECT_EQ(rampup.StepsWithin(kMaxPower), kMaxPower / 7);
  }
}

TEST(BatchRampup, NoProductOfLargeNumbersOverflows) {
  constexpr uint64_t kEnd = (uint64_t{1} << 31) - 1;
  const BatchRampup rampup(kEnd, BatchGrowth{1, 1, kMaxPower - 1});
  EXPECT_EQ(rampup.BatchAfter(0), 1U);
  EXPECT_EQ(rampup.BatchAfter(kMaxPower - 2), kEnd - 1);
  EXPECT_EQ(rampup.BatchAfter(kMaxPower - 1), kEnd);
  EXPECT_EQ(rampup.StepsWithin(uint64_t{1} << 20), uint64_t{1} << 20);
}

TEST(BatchRampup, StepsWithinCountsTheWholeSteps) {
  for (const uint64_t start : {1, 2, 6}) {
    for (const uint64_t increment : {1, 2, 5}) {
      for (const uint64_t increments : {0, 1, 3, 40}) {
        for (const uint64_t samples : {0, 1, 7, 50, 333}) {
          const BatchRampup rampup(start + increment * increments,
                                   BatchGrowth{start, increment, samples});
          uint64_t steps = 0;
          uint64_t consumed = 0;
          for (uint64_t limit = 0; limit < 700; ++limit) {
            while (consumed + rampup.BatchAfter(consumed) <= limit) {
              consumed += rampup.BatchAfter(consumed);
              ++steps;
            }
            ASSERT_EQ(rampup.StepsWithin(limit), steps)
                << start << " + " << increment << " * " << increments << " over " << samples
                << ", limit " << limit;
          }
        }
      }
    }
  }
}

TEST(BatchRampup, ALongRampIsCountedByItsBatches) {
  // 9,926 steps in 105 batches, and hundreds of millions of steps with one.
  const BatchRampup rampup(2048, BatchGrowth{384, 16, 9'765'625});
  const Ramp ramp = RampOf(rampup, 9'765'625);
  EXPECT_EQ(rampup.StepsWithin(ramp.consumed), ramp.steps);
  EXPECT_EQ(rampup.StepsWithin(ramp.consumed - 1), ramp.steps - 1);
  EXPECT_EQ(rampup.StepsWithin(ramp.consumed + 2048 * 500'000'000ULL), ramp.steps + 500'000'000);
}

}  // namespace
}  // namespace penstock::train
