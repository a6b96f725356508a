// The host memory and the drive of tests/offload/policy_world.h: what a policy decides is carried
// out here, where it is checked that budgets are kept and nothing is lost.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "offload/tile_policy.h"

namespace penstock::offload {

class PolicyHost {
 public:
  struct Tile {
    bool weight_block = false;
    bool weight_there = false;
    bool record_block = false;
    bool record_there = false;
    bool writing = false;
    int device_pins = 0;
    uint64_t next_use = 0;  ///< of the device, not before this time
    bool updating = false;
    uint64_t begun = 0;
    uint64_t version = 0;
  };

  explicit PolicyHost(const TilePolicyOptions& options)
      : options_(options), tiles_(options.homes.size()) {}

  Tile& At(TileId tile) { return tiles_[Index(tile)]; }
  std::vector<Tile>& tiles() { return tiles_; }
  const TileHome& HomeOf(TileId tile) const { return options_.homes[Index(tile)]; }
  /// The number of requests that the drive has.
  size_t requests() const { return io_.size(); }
  uint64_t weight_reads() const { return weight_reads_; }
  uint64_t record_reads() const { return record_reads_; }

  /// For a tile that is filled.
  void TakeBlocks(TileId tile) {
    Tile& entry = At(tile);
    if (HomeOf(tile).weight_on_drive) {
      EXPECT_LE(++weight_blocks_, options_.weight_blocks);
      entry.weight_block = entry.weight_there = true;
    }
    if (HomeOf(tile).record_on_drive) {
      EXPECT_LE(++record_blocks_, options_.record_blocks);
      entry.record_block = entry.record_there = true;
    }
  }

  void StartWrites(TileId tile) {
    if (HomeOf(tile).weight_on_drive) Start(Io::kWeightWrite, tile);
    if (HomeOf(tile).record_on_drive) Start(Io::kRecordWrite, tile);
  }

  void Complete(size_t request, TilePolicy& policy) {
    const auto [io, tile] = io_[request];
    io_.erase(io_.begin() + static_cast<std::ptrdiff_t>(request));
    switch (io) {
      case Io::kWeightRead:
        At(tile).weight_there = true;
        policy.WeightRead(tile);
        break;
      case Io::kRecordRead:
        At(tile).record_there = true;
        policy.RecordRead(tile);
        break;
      case Io::kWeightWrite:
        At(tile).writing = false;
        policy.WeightWritten(tile);
        break;
      case Io::kRecordWrite:
        ASSERT_TRUE(At(tile).record_block);
        At(tile).record_block = At(tile).record_there = false;
        --record_blocks_;
        policy.RecordWritten(tile);
        break;
    }
  }

  void CarryOut(const TileAction& action) {
    Tile& entry = At(action.tile);
    switch (action.kind) {
      case TileAction::Kind::kEvictWeight:
        ASSERT_TRUE(entry.weight_there && !entry.writing && !entry.updating);
        ASSERT_EQ(entry.device_pins, 0);
        entry.weight_block = entry.weight_there = false;
        --weight_blocks_;
        break;
      case TileAction::Kind::kReadWeight:
        ASSERT_EQ(entry.version, entry.begun) << "the device wants the updated weight";
        [[fallthrough]];
      case TileAction::Kind::kReadWeightForUpdate:
        ASSERT_TRUE(HomeOf(action.tile).weight_on_drive && !entry.weight_block);
        entry.weight_block = true;
        ASSERT_LE(++weight_blocks_, options_.weight_blocks);
        ++weight_reads_;
        Start(Io::kWeightRead, action.tile);
        break;
      case TileAction::Kind::kReadRecord:
        ASSERT_TRUE(HomeOf(action.tile).record_on_drive && !entry.record_block);
        ASSERT_FALSE(entry.writing) << "what is read is what was written";
        entry.record_block = true;
        ASSERT_LE(++record_blocks_, options_.record_blocks);
        ++record_reads_;
        Start(Io::kRecordRead, action.tile);
        break;
      case TileAction::Kind::kEvictRecord:
        ASSERT_TRUE(entry.record_there && !entry.updating);
        ASSERT_EQ(entry.version, entry.begun) << "an update that has begun keeps its record";
        entry.record_block = entry.record_there = false;
        --record_blocks_;
        break;
    }
  }

 private:
  enum class Io { kWeightRead, kRecordRead, kWeightWrite, kRecordWrite };

  void Start(Io io, TileId tile) {
    if (io == Io::kWeightWrite) At(tile).writing = true;
    io_.emplace_back(io, tile);
  }

  const TilePolicyOptions options_;
  std::vector<Tile> tiles_;
  std::vector<std::pair<Io, TileId>> io_;
  size_t weight_blocks_ = 0;
  size_t record_blocks_ = 0;
  uint64_t weight_reads_ = 0;
  uint64_t record_reads_ = 0;
};

}  // namespace penstock::offload
