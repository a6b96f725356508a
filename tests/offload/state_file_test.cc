#include "offload/state_file.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/mapping.h"
#include "offload/state_reader.h"
#include "tests/offload/support.h"

namespace penstock::offload {
namespace {

class StateFileTest : public FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    engine_ = std::move(aio::CreateEngine({.kind = aio::EngineKind::kThreads})).value();
  }

  std::unique_ptr<StateFile> Create(bool durable) {
    auto file = StateFile::Create(layout_, {.folder = folder_, .durable = durable}, *engine_);
    EXPECT_TRUE(file.ok()) << file.error().message;
    return std::move(file).value();
  }

  /// Writes every tile filled with `value` as `version`, and returns what a commit of it says.
  CommitRecord WriteTiles(StateFile& file, uint8_t value, uint64_t version) {
    CommitRecord record{.step = version};
    EXPECT_TRUE(file.PrepareWrites().ok());
    for (size_t i = 0; i < layout_.tiles.size(); ++i) {
      const TileId tile{static_cast<uint32_t>(i)};
      const uint64_t elements = layout_.tiles[i].elements;
      const int slot = file.WriteSlot(tile);
      const auto weight = Filled(layout_.WeightBytes(elements), value);
      const auto states = Filled(layout_.RecordBytes(elements), value);
      Write(file, file.WeightOffset(tile, slot), weight);
      Write(file, file.RecordOffset(tile, slot), states);
      const uint64_t seed = TileSeed(file.uuid(), tile, version);
      record.tiles.push_back(
          {.version = version,
           .checksums = {WeightChecksum(seed, {weight.data(), layout_.WeightBytes(elements).value}),
                         RecordChecksum(seed, layout_.dtype, elements,
                                        {states.data(), layout_.RecordBytes(elements).value})},
           .slot = static_cast<uint32_t>(slot)});
    }
    return record;
  }

  static Mapping Filled(Bytes size, uint8_t value) {
    Mapping mapping = std::move(Mapping::Create(size)).value();
    std::memset(mapping.data(), value, size.value);
    return mapping;
  }

  void Write(StateFile& file, FileOffset offset, const Mapping& bytes) {
    const Status written = engine_
                               ->Submit({.operation = aio::Operation::kWrite,
                                         .file = &file.file(),
                                         .offset = offset,
                                         .buffer = {bytes.data(), bytes.size().value}})
                               .Wait();
    EXPECT_TRUE(written.ok()) << written.error().message;
  }

  void ExpectCommitted(const std::string& path, uint64_t step, uint8_t value) {
    const auto reader = StateReader::Open(path);
    ASSERT_TRUE(reader.ok()) << reader.error().message;
    EXPECT_EQ((*reader)->commit().step, step);
    for (uint32_t i = 0; i < layout_.tiles.size(); ++i) {
      StateReader::TileBytes bytes;
      const Status read = (*reader)->ReadTile(TileId{i}, bytes);
      ASSERT_TRUE(read.ok()) << read.error().message;
      EXPECT_EQ(bytes.weight.front(), std::byte{value});
      EXPECT_EQ(bytes.record.back(), std::byte{value});
    }
  }

  const Layout layout_ = SmallLayout(DType::kBFloat16);
  std::unique_ptr<aio::Engine> engine_;
};

TEST_F(StateFileTest, TheNewestCommitIsWhatAReaderFinds) {
  std::string path;
  {
    const auto file = Create(true);
    path = file->path();
    for (uint8_t step = 1; step <= 3; ++step) {
      ASSERT_TRUE(file->Commit(WriteTiles(*file, step, step)).ok());
    }
  }
  ExpectCommitted(path, 3, 3);
}

TEST_F(StateFileTest, WritesAfterACommitNeverTouchWhatItNames) {
  std::string path;
  {
    const auto file = Create(true);
    path = file->path();
    ASSERT_TRUE(file->Commit(WriteTiles(*file, 1, 1)).ok());
    // Two updates that no commit follows: both go to the other slot.
    WriteTiles(*file, 2, 2);
    WriteTiles(*file, 3, 3);
  }
  ExpectCommitted(path, 1, 1);
}

TEST_F(StateFileTest, WithOneSlotACommitIsTakenBackBeforeTheNextWrite) {
  std::string path;
  {
    const auto file = Create(false);
    path = file->path();
    ASSERT_TRUE(file->Commit(WriteTiles(*file, 1, 1)).ok());
    WriteTiles(*file, 2, 2);
  }
  const auto reader = StateReader::Open(path);
  ASSERT_FALSE(reader.ok());
  EXPECT_EQ(reader.error().code, ErrorCode::kNotFound);
}

TEST_F(StateFileTest, AFileInUseIsRefusedWithItsPath) {
  const auto file = Create(true);
  ASSERT_TRUE(file->Commit(WriteTiles(*file, 1, 1)).ok());
  const auto reader = StateReader::Open(file->path());
  ASSERT_FALSE(reader.ok());
  EXPECT_EQ(reader.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(reader.error().message.find(file->path()), std::string::npos);
}

TEST_F(StateFileTest, AFileWithoutACommitSaysSo) {
  // As a killed run leaves it.
  const auto file = Create(true);
  const std::string copy = folder_ / "copy";
  std::filesystem::copy_file(file->path(), copy);
  const auto reader = StateReader::Open(copy);
  ASSERT_FALSE(reader.ok());
  EXPECT_EQ(reader.error().code, ErrorCode::kNotFound);
}

TEST_F(StateFileTest, AFileThatNeverHeldACommitIsRemovedAtTheEnd) {
  { const auto file = Create(true); }
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

TEST_F(StateFileTest, AFailedCommitIsFinalAndLeavesTheOneBefore) {
  for (const bool retry : {false, true}) {
    std::string path;
    {
      const auto file = Create(true);
      path = file->path();
      ASSERT_TRUE(file->Commit(WriteTiles(*file, 1, 1)).ok());
      const CommitRecord second = WriteTiles(*file, 2, 2);
      CommitRecord too_long = second;
      too_long.json.assign(kCommitJsonLimit.value + 1, 'x');
      ASSERT_FALSE(file->Commit(too_long).ok());
      if (retry) {
        EXPECT_FALSE(file->Commit(second).ok());
      }
    }
    ExpectCommitted(path, 1, 1);
  }
}

TEST_F(StateFileTest, AMissingFolderLeavesOneClearError) {
  const auto file =
      StateFile::Create(layout_, {.folder = folder_ / "missing", .durable = true}, *engine_);
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.error().code, ErrorCode::kNotFound);
  EXPECT_NE(file.error().message.find("missing"), std::string::npos);
}

TEST_F(StateFileTest, SomethingElseIsNotTakenForAStateFile) {
  const std::string path = folder_ / "other";
  FILE* other = std::fopen(path.c_str(), "w");
  ASSERT_NE(other, nullptr);
  for (int i = 0; i < 5000; ++i) std::fputc('x', other);
  std::fclose(other);
  const auto reader = StateReader::Open(path);
  ASSERT_FALSE(reader.ok());
  EXPECT_EQ(reader.error().code, ErrorCode::kCorruption);
}

}  // namespace
}  // namespace penstock::offload
