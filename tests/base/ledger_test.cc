#include "base/ledger.h"

#include <gmock/gmock.h>

#include <thread>
#include <utility>
#include <vector>

namespace penstock {
namespace {

using testing::HasSubstr;

TEST(Ledger, ChargesByTierAndClassAndGivesBackAtTheEndOfTheScope) {
  Ledger ledger(100_B, 200_B, 300_B);
  {
    const auto states = ledger.Charge(Tier::kHost, MemoryClass::kStates, 50_B);
    const auto scratch = ledger.Charge(Tier::kHost, MemoryClass::kScratch, 70_B);
    ASSERT_TRUE(states.ok() && scratch.ok());
    EXPECT_EQ(states->size(), 50_B);
    EXPECT_EQ(ledger.used(Tier::kHost), 120_B);
    EXPECT_EQ(ledger.used(Tier::kHost, MemoryClass::kStates), 50_B);
    EXPECT_EQ(ledger.used(Tier::kHost, MemoryClass::kScratch), 70_B);
    EXPECT_EQ(ledger.used(Tier::kHost, MemoryClass::kGradients), 0_B);
    EXPECT_EQ(ledger.used(Tier::kDevice), 0_B);
  }
  EXPECT_EQ(ledger.used(Tier::kHost), 0_B);
  EXPECT_EQ(ledger.peak(Tier::kHost), 120_B);
  EXPECT_EQ(ledger.peak(Tier::kDevice), 0_B);
}

TEST(Ledger, LimitsHoldToTheByteAndTheErrorNamesTheSum) {
  Ledger ledger(100_B, 200_B, 300_B);
  EXPECT_EQ(ledger.limit(Tier::kDevice), 100_B);
  EXPECT_EQ(ledger.limit(Tier::kHost), 200_B);
  EXPECT_EQ(ledger.limit(Tier::kNvme), 300_B);
  const auto most = ledger.Charge(Tier::kDevice, MemoryClass::kParameters, 99_B);
  ASSERT_TRUE(most.ok());
  const auto over = ledger.Charge(Tier::kDevice, MemoryClass::kActivations, 2_B);
  ASSERT_FALSE(over.ok());
  EXPECT_EQ(over.error().code, ErrorCode::kBudget);
  for (const char* part :
       {"2 bytes for activations", "99 bytes of 100 bytes", "device_memory", "101 bytes"}) {
    EXPECT_THAT(over.error().message, HasSubstr(part));
  }
  EXPECT_EQ(ledger.used(Tier::kDevice), 99_B) << "a refused charge takes nothing";
  EXPECT_EQ(ledger.peak(Tier::kDevice), 99_B);
  EXPECT_TRUE(ledger.Charge(Tier::kDevice, MemoryClass::kActivations, 1_B).ok());
}

TEST(Ledger, AChargeThatWouldWrapAroundIsRefused) {
  Ledger ledger(100_B, 200_B, 300_B);
  const auto some = ledger.Charge(Tier::kNvme, MemoryClass::kStates, 10_B);
  ASSERT_TRUE(some.ok());
  EXPECT_FALSE(ledger.Charge(Tier::kNvme, MemoryClass::kStates, Bytes{UINT64_MAX}).ok());
}

TEST(Ledger, PeakIsTheLargestSumThereWas) {
  Ledger ledger(100_B, 200_B, 300_B);
  { const auto first = ledger.Charge(Tier::kHost, MemoryClass::kStates, 80_B); }
  { const auto second = ledger.Charge(Tier::kHost, MemoryClass::kStates, 60_B); }
  EXPECT_EQ(ledger.peak(Tier::kHost), 80_B);
}

TEST(Reservation, MovesWithoutChargingTwice) {
  Ledger ledger(100_B, 200_B, 300_B);
  Reservation outer;
  EXPECT_EQ(outer.size(), 0_B);
  {
    auto inner = ledger.Charge(Tier::kHost, MemoryClass::kStates, 40_B);
    ASSERT_TRUE(inner.ok());
    outer = std::move(inner).value();
  }
  EXPECT_EQ(ledger.used(Tier::kHost), 40_B);
  {
    const Reservation last(std::move(outer));
    EXPECT_EQ(ledger.used(Tier::kHost), 40_B);
  }
  EXPECT_EQ(ledger.used(Tier::kHost), 0_B);
}

TEST(Reservation, AssigningToOneGivesItsOldChargeBackAtOnce) {
  Ledger ledger(100_B, 200_B, 300_B);
  Reservation first = ledger.Charge(Tier::kHost, MemoryClass::kStates, 40_B).value();
  Reservation second = ledger.Charge(Tier::kHost, MemoryClass::kScratch, 70_B).value();
  first = std::move(second);
  EXPECT_EQ(ledger.used(Tier::kHost, MemoryClass::kStates), 0_B);
  EXPECT_EQ(ledger.used(Tier::kHost, MemoryClass::kScratch), 70_B);
  EXPECT_EQ(first.size(), 70_B);
}

TEST(Ledger, ManyThreadsNeverExceedTheLimit) {
  Ledger ledger(100_B, 200_B, 300_B);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&ledger] {
      for (int j = 0; j < 500; ++j) {
        const auto held = ledger.Charge(Tier::kDevice, MemoryClass::kStates, 40_B);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ledger.used(Tier::kDevice), 0_B);
  EXPECT_LE(ledger.peak(Tier::kDevice), 100_B);
  EXPECT_GE(ledger.peak(Tier::kDevice), 40_B);
}

TEST(Names, OfTiersAndClassesAreThoseOfTheSummary) {
  EXPECT_STREQ(ToString(Tier::kDevice), "device");
  EXPECT_STREQ(ToString(Tier::kHost), "host");
  EXPECT_STREQ(ToString(Tier::kNvme), "nvme");
  EXPECT_STREQ(ToString(MemoryClass::kParameters), "parameters");
  EXPECT_STREQ(ToString(MemoryClass::kScratch), "scratch");
}

}  // namespace
}  // namespace penstock
