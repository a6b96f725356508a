// Copies of a state, several tiles at a time through an I/O engine: their bytes, their holes, and
// what failures at any block leave.
#include "offload/state_copy.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <optional>

#include "base/file_extents.h"
#include "offload/state_file.h"
#include "offload/state_names.h"
#include "offload/whole_state.h"
#include "tests/offload/support.h"

namespace penstock::offload {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

/// A state on two paths with two commits, each tile of which has other bytes.
class StateCopyTest : public FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    Make(SmallLayout(DType::kBFloat16));
  }

  void Make(const ShardLayout& layout) {
    layout_ = layout;
    const auto engine = aio::CreateEngine({.kind = aio::EngineKind::kThreads}).value();
    aio::Engine* const engines[] = {engine.get(), engine.get()};
    const auto file = StateFile::Create(
        layout,
        {.folders = {folder_, folder_},
         .require_direct = false,
         .probe = [](aio::Engine&, const aio::File&, Bytes) { return Result<double>(1.0); }},
        engines);
    ASSERT_TRUE(file.ok()) << file.error().message;
    paths_.clear();
    targets_.clear();
    for (const PathShare& share : (*file)->Shares()) paths_.push_back(share.path);
    for (size_t i = 0; i < paths_.size(); ++i) {
      targets_.push_back(folder_ / fmt::format("copy{}", i));
    }
    for (const uint64_t step : {1, 2}) Commit(**file, step);
  }

  void Commit(StateFile& file, uint64_t step) const {
    CommitRecord record{.head = {.step = step}, .json = "{}"};
    ASSERT_TRUE(file.PrepareWrites().ok());
    for (const TileId tile : layout_.Tiles()) {
      const int slot = file.WriteSlot(tile);
      const auto weight = Write(file, Part::kWeight, tile, step);
      const auto states = Write(file, Part::kRecord, tile, step);
      record.tiles.push_back(
          {.version = step,
           .checksums = ChecksumsOf(file.uuid(), layout_, tile, step, weight, states),
           .slot = static_cast<uint32_t>(slot)});
    }
    const Status committed = file.Commit(std::move(record));
    ASSERT_TRUE(committed.ok()) << committed.error().message;
  }

  /// Writes a part, and returns it.
  std::vector<std::byte> Write(StateFile& file, Part part, TileId tile, uint64_t step) const {
    std::vector<std::byte> bytes(SizeOf(part, tile).value);
    for (size_t i = 0; i < bytes.size(); ++i) {
      bytes[i] = static_cast<std::byte>(i / 4096 + 7 * Index(tile) + 31 * step + i % 251);
    }
    EXPECT_TRUE(file.Submit({.part = part,
                             .tile = tile,
                             .slot = file.WriteSlot(tile),
                             .operation = aio::Operation::kWrite,
                             .buffer = bytes})
                    .Wait()
                    .ok());
    return bytes;
  }
  Bytes SizeOf(Part part, TileId tile) const {
    return part == Part::kWeight ? layout_.WeightBytes(tile) : layout_.RecordBytes(tile);
  }

  /// Several blocks a part, of which several are in flight.
  static aio::EngineOptions SmallBlocks(const std::optional<aio::FaultPlan>& faults = {},
                                        Bytes block_size = 4_KiB) {
    return {.kind = aio::EngineKind::kThreads,
            .block_size = block_size,
            .queue_depth = 8,
            .thread_count = 3,
            .faults = faults};
  }

  Status Copy(const aio::EngineOptions& io) const {
    const auto state = WholeState::Open({paths_});
    return CopyState(
        state.value(), {targets_}, [] { return false; }, io);
  }

  static std::string BytesOf(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  /// That the copy has the tiles of the newest commit, and nothing of the one before.
  void ExpectCopied() const {
    const auto from = StateReader::Open(paths_);
    const auto copy = StateReader::Open(targets_);
    ASSERT_TRUE(from.ok() && copy.ok());
    EXPECT_EQ((*copy)->commit().head.step, 2);
    EXPECT_EQ((*copy)->commits().size(), 1);
    EXPECT_THAT((*copy)->CheckHeads(), IsEmpty());
    for (const TileId tile : layout_.Tiles()) {
      StateReader::TileBytes expected;
      StateReader::TileBytes found;
      ASSERT_TRUE((*from)->ReadTile(tile, expected).ok());
      const Status read = (*copy)->ReadTile(tile, found);
      ASSERT_TRUE(read.ok()) << read.error().message;
      EXPECT_EQ(found.weight, expected.weight);
      EXPECT_EQ(found.record, expected.record);
    }
    for (size_t i = 0; i < paths_.size(); ++i) {
      EXPECT_EQ(fs::file_size(targets_[i]), fs::file_size(paths_[i]));
    }
  }
  void ExpectNothingIsLeft() const {
    for (const auto& entry : fs::directory_iterator(folder_)) {
      EXPECT_THAT(entry.path().filename().string(), Not(HasSubstr("copy")));
    }
  }
  void RemoveCopy() const {
    for (const std::string& target : targets_) fs::remove(target);
  }

  ShardLayout layout_;
  std::vector<std::string> paths_;
  std::vector<std::string> targets_;
};

TEST_F(StateCopyTest, ACopyHasTheBitsOfTheCommitForAnyBlocksInAnyOrder) {
  const aio::FaultPlan disorder{.seed = 5,
                                .transient_chance = 0.1,
                                .short_chance = 0.2,
                                .delay_chance = 0.1,
                                .reorder = true};
  for (const aio::EngineOptions& io :
       {aio::EngineOptions{}, SmallBlocks(), SmallBlocks(disorder)}) {
    const Status copied = Copy(io);
    ASSERT_TRUE(copied.ok()) << copied.error().message;
    ExpectCopied();
    RemoveCopy();
  }
}

TEST_F(StateCopyTest, PartsWhoseSizeIsNoMultipleOfABlockAreCopied) {
  ModelLayout model = SmallLayout(DType::kBFloat16).model;
  for (GroupLayout& group : model.groups) {
    group.planes =
        Planes{MakePlane(PlaneRole::kWeight, Encoding::kFloat32),
               MakeBlockwise8Plane(PlaneRole::kExpAvg), MakeBlockwise8Plane(PlaneRole::kExpAvgSq)};
  }
  fs::remove_all(folder_);
  fs::create_directory(folder_);
  Make(MakeShard(std::move(model), 8192));
  for (const Bytes block : {12_KiB, 20_KiB, 1_MiB}) {
    ASSERT_NE(layout_.WeightBytes(TileId{0}).value % block.value, 0);
    const Status copied = Copy(SmallBlocks({}, block));
    ASSERT_TRUE(copied.ok()) << copied.error().message;
    ExpectCopied();
    RemoveCopy();
  }
}

TEST_F(StateCopyTest, WhatTheCommitDoesNotNameIsAHole) {
  ASSERT_TRUE(Copy(SmallBlocks()).ok());
  const auto copy = StateReader::Open(targets_).value();
  for (size_t path = 0; path < targets_.size(); ++path) {
    const auto extents = ReadExtents(copy->fd(path));
    if (!extents.ok()) GTEST_SKIP() << extents.error().message;
    const std::vector<FileRange> holes = HolesIn(*extents, Bytes{fs::file_size(targets_[path])});
    for (const TileId tile : layout_.Tiles()) {
      const TilePlace& place = copy->header().tiles[Index(tile)];
      if (place.path != path) continue;
      const int other = 1 - static_cast<int>(copy->commit().tiles[Index(tile)].slot);
      for (const Part part : {Part::kWeight, Part::kRecord}) {
        const FileOffset at = PartOffset(copy->geometry(path), place, part, other);
        const Bytes size = SizeOf(part, tile);
        EXPECT_TRUE(std::ranges::any_of(holes,
                                        [&](const FileRange& hole) {
                                          return hole.begin.value <= at.value &&
                                                 (at + size).value <=
                                                     (hole.begin + hole.size).value;
                                        }))
            << targets_[path] << " at " << at.value;
      }
    }
  }
}

TEST_F(StateCopyTest, AFailureAtAnyBlockIsNamedWithFileAndOffsetAndLeavesNothing) {
  for (const aio::Operation operation : {aio::Operation::kRead, aio::Operation::kWrite}) {
    const bool reads = operation == aio::Operation::kRead;
    for (const int error_number : {EIO, ENOSPC}) {
      if (reads && error_number == ENOSPC) continue;
      uint64_t failed = 0;
      for (uint64_t block = 0;; ++block) {
        const Status copied = Copy(SmallBlocks(aio::FaultPlan{
            .faults = {
                {.operation = operation, .first_block = block, .error_number = error_number}}}));
        if (copied.ok()) break;
        ++failed;
        EXPECT_EQ(copied.error().code,
                  error_number == EIO ? ErrorCode::kIo : ErrorCode::kOutOfSpace);
        // Each path's engine counts its own blocks.
        const auto names = [&](size_t path) {
          return HasSubstr(" of " + (reads ? paths_[path] : UnfinishedCopy(targets_[path])));
        };
        EXPECT_THAT(copied.error().message,
                    AllOf(HasSubstr(ToString(operation)), HasSubstr("at offset "),
                          AnyOf(names(0), names(1))));
        ExpectNothingIsLeft();
      }
      EXPECT_GT(failed, 10);
      ExpectCopied();
      RemoveCopy();
    }
  }
}

TEST_F(StateCopyTest, ADamagedTileIsNamedAndNothingIsLeft) {
  FileOffset at;
  std::string path;
  {
    const auto state = StateReader::Open(paths_).value();
    at = state->OffsetOf(Part::kRecord, TileId{0});
    path = paths_[state->header().tiles[0].path];
  }
  {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(at.value));
    file.put('\x5a');
  }
  const Status copied = Copy(SmallBlocks());
  ASSERT_FALSE(copied.ok());
  EXPECT_EQ(copied.error().code, ErrorCode::kCorruption);
  EXPECT_THAT(copied.error().message, HasSubstr(fmt::format("{} at offset {}", path, at.value)));
  ExpectNothingIsLeft();
}

TEST_F(StateCopyTest, AStateWhosePathsWereTakenMeanwhileIsCopiedFromItsOpenFiles) {
  const auto state = WholeState::Open({paths_}).value();
  for (const std::string& path : paths_) {
    fs::rename(path, path + ".aside");
    std::ofstream(path) << "another file";
  }
  const Status copied = CopyState(state, {targets_}, [] { return false; });
  ASSERT_TRUE(copied.ok()) << copied.error().message;
  for (std::string& path : paths_) path += ".aside";
  ExpectCopied();
}

}  // namespace
}  // namespace penstock::offload
