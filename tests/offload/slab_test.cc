#include "offload/slab.h"

#include <gtest/gtest.h>

#include <utility>

namespace penstock::offload {
namespace {

TEST(SlabTest, LeasesGiveTheirBlockBack) {
  Slab slab = std::move(Slab::Create(8_KiB)).value();
  BlockPool pool(slab, 4_KiB, 2);
  {
    const BlockLease first = pool.TryTake();
    BlockLease second = pool.TryTake();
    EXPECT_NE(first.data(), second.data());
    EXPECT_FALSE(pool.TryTake().valid());
    const BlockLease moved = std::move(second);
    EXPECT_EQ(pool.free(), 0);
  }
  EXPECT_EQ(pool.free(), 2);
}

TEST(SlabTest, ALeaseThatTakesAnothersBlockGivesItsOwnBackAtOnce) {
  Slab slab = std::move(Slab::Create(8_KiB)).value();
  BlockPool pool(slab, 4_KiB, 2);
  BlockLease held = pool.TryTake();
  BlockLease other = pool.TryTake();
  const std::byte* const own = held.data();
  const std::byte* const block = other.data();
  held = std::move(other);
  EXPECT_EQ(held.data(), block);
  EXPECT_EQ(pool.free(), 1U);
  EXPECT_EQ(pool.TryTake().data(), own);
}

TEST(SlabDeathTest, CuttingBeyondThePlanIsABug) {
  Slab slab = std::move(Slab::Create(8_KiB)).value();
  slab.Cut(5_KiB);
  EXPECT_DEATH(slab.Cut(1_B), "beyond");
}

}  // namespace
}  // namespace penstock::offload
