// Tiles of a committed state for several threads: the right bytes, few in memory, and damage that
// is told to all who wait.
#include "zero/states/source_tiles.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <thread>

#include "tests/offload/one_rank.h"
#include "tests/offload/support.h"

namespace penstock::zero {
namespace {

using offload::Part;
using offload::TileId;
using offload::WholeState;
using ::testing::AllOf;
using ::testing::HasSubstr;

/// A state of two ranks with 48 tiles each.
class SourceTilesTest : public offload::FolderTest {
 protected:
  static constexpr uint32_t kWorld = 2;
  static constexpr uint32_t kTiles = 48;

  void SetUp() override {
    FolderTest::SetUp();
    offload::ModelLayout model{
        .groups = offload::DecayGroups(offload::MakePlanes(DType::kBFloat16)),
        .modules = {offload::MakeModule("m", {{.name = "w", .shape = {kWorld * kTiles, 4096}}})},
        .parameters = uint64_t{kWorld} * kTiles * 4096};
    for (uint32_t rank = 0; rank < kWorld; ++rank) {
      offload::OneRank files(offload::kUuid, offload::MakeShard(model, 4096, kWorld, rank),
                             folder_);
      ASSERT_TRUE(files.Create().ok());
      ASSERT_TRUE(files.Write(static_cast<uint8_t>(40 + rank)).ok());
      ASSERT_TRUE(files.Commit({.step = 1, .session = 7}).ok());
      paths_.push_back(files.paths());
    }
  }

  static bool IsAsWritten(const SourceTiles::Pin& pin, const RankTile& tile) {
    const auto holds = [&](std::span<const std::byte> part) {
      return !part.empty() && std::ranges::all_of(part, [&](std::byte byte) {
        return byte == static_cast<std::byte>(40 + tile.rank);
      });
    };
    return pin.IsOf(tile) && holds(pin.parts().weight) && holds(pin.parts().record);
  }

  offload::RankPaths paths_;
};

TEST_F(SourceTilesTest, EveryThreadGetsTheTilesThatItAsksFor) {
  const WholeState state = WholeState::Open(paths_).value();
  for (const int rooms_for : {1, 4}) {  // fewer rooms than threads, and enough
    const auto tiles = SourceTiles::Open(state, rooms_for);
    ASSERT_TRUE(tiles.ok()) << tiles.error().message;
    std::atomic<int> wrong = 0;
    std::vector<std::thread> threads;
    for (uint32_t thread = 0; thread < 4; ++thread) {
      threads.emplace_back([&, thread] {
        for (uint32_t i = 0; i < 400; ++i) {
          // Often what the others ask for, and sometimes far from it.
          const uint32_t number = (i / 2 + i % 7 * thread) % (kWorld * kTiles);
          const RankTile tile{.rank = number / kTiles, .tile = TileId{number % kTiles}};
          const auto pin = (*tiles)->Get(tile);
          if (!pin.ok() || !IsAsWritten(*pin, tile)) ++wrong;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong, 0) << rooms_for;
  }
}

TEST_F(SourceTilesTest, ATileStaysWhileItIsPinned) {
  const WholeState state = WholeState::Open(paths_).value();
  const auto tiles = SourceTiles::Open(state, 1).value();  // two rooms
  const RankTile kept{.rank = 1, .tile = TileId{3}};
  const auto pin = tiles->Get(kept);
  ASSERT_TRUE(pin.ok()) << pin.error().message;
  for (uint32_t i = 0; i < kTiles; ++i) {
    const RankTile other{.rank = 0, .tile = TileId{i}};
    const auto beside = tiles->Get(other);
    ASSERT_TRUE(beside.ok() && IsAsWritten(*beside, other));
  }
  EXPECT_TRUE(IsAsWritten(*pin, kept));
}

TEST_F(SourceTilesTest, ADamagedTileIsReportedToAllItsReadersAndNoOthers) {
  const WholeState state = WholeState::Open(paths_).value();
  const RankTile damaged{.rank = 1, .tile = TileId{5}};
  const FileOffset at = state.rank(1).OffsetOf(Part::kRecord, damaged.tile);
  {
    std::fstream file(paths_[1][0], std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(at.value));
    file.put('\x5a');
  }
  const auto tiles = SourceTiles::Open(state, 4).value();
  std::atomic<int> told = 0;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&] {
      for (uint32_t i = 0; i < 10; ++i) {
        const RankTile tile{.rank = 1, .tile = TileId{i}};
        const auto pin = tiles->Get(tile);
        if (tile == damaged && !pin.ok() && pin.error().code == ErrorCode::kCorruption) ++told;
        if (tile == damaged) continue;
        EXPECT_TRUE(pin.ok() && IsAsWritten(*pin, tile));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(told, 4);
  EXPECT_THAT(tiles->Get(damaged).error().message,
              AllOf(HasSubstr(paths_[1][0]), HasSubstr(fmt::format("at offset {}", at.value))));
}

}  // namespace
}  // namespace penstock::zero
