#include "offload/weight_cache.h"

#include <gtest/gtest.h>

namespace penstock::offload {
namespace {

class WeightCacheTest : public ::testing::Test {
 protected:
  WeightCacheTest()
      : slab_(std::move(Slab::Create(16_KiB)).value()), pool_(slab_, 4_KiB, 3), cache_(pool_, 8) {}

  /// Tile i is needed at 10 * i.
  BlockLease Take(uint64_t needed_at) {
    return cache_.TakeBlock(needed_at, [](TileId tile) { return 10 * Index(tile); });
  }

  Slab slab_;
  BlockPool pool_;
  WeightCache cache_;
};

TEST_F(WeightCacheTest, FreeBlocksGoFirstThenTheCopyNeededFurthestAway) {
  for (uint32_t tile : {2, 5, 3}) cache_[TileId{tile}].block = Take(0);
  EXPECT_EQ(cache_.evictions(), 0);
  EXPECT_TRUE(Take(0).valid());
  EXPECT_FALSE(cache_[TileId{5}].present());
  EXPECT_TRUE(cache_[TileId{2}].present());
  EXPECT_EQ(cache_.evictions(), 1);
}

TEST_F(WeightCacheTest, NothingNeededSoonerIsEvicted) {
  for (uint32_t tile : {2, 5, 3}) cache_[TileId{tile}].block = Take(0);
  EXPECT_FALSE(Take(50).valid());
  EXPECT_TRUE(Take(49).valid());
}

TEST_F(WeightCacheTest, PinnedReadingAndWrittenCopiesStay) {
  for (uint32_t tile : {5, 6, 7}) cache_[TileId{tile}].block = Take(0);
  cache_[TileId{5}].pins = 1;
  cache_[TileId{6}].reading = true;
  cache_[TileId{7}].writing = true;
  EXPECT_FALSE(Take(0).valid());
  cache_[TileId{6}].reading = false;
  EXPECT_TRUE(Take(0).valid());
  EXPECT_FALSE(cache_[TileId{6}].block.valid());
}

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

TEST(SlabDeathTest, CuttingBeyondThePlanIsABug) {
  Slab slab = std::move(Slab::Create(8_KiB)).value();
  slab.Cut(5_KiB);
  EXPECT_DEATH(slab.Cut(1_B), "beyond");
}

}  // namespace
}  // namespace penstock::offload
