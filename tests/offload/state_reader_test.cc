#include "offload/state_reader.h"

#include <gmock/gmock.h>
#include <algorithm>

#include <filesystem>
#include <fstream>

#include "offload/checksum.h"
#include "offload/state_copy.h"
#include "offload/state_file.h"
#include "offload/state_names.h"
#include "tests/offload/support.h"
#include "tests/search_share.h"

namespace penstock::offload {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class StateReaderTest : public FolderTest {
 protected:
  /// Of a tile that is all zeros, as it is until it is written.
  static TileChecksums OfZeros(const StateFile& file, const ShardLayout& layout, TileId tile) {
    const std::vector<std::byte> weight(layout.WeightBytes(tile).value);
    const std::vector<std::byte> record(layout.RecordBytes(tile).value);
    return ChecksumsOf(file.uuid(), layout, tile, 0, weight, record);
  }

  /// The files of a state on two paths with a commit for each size of its JSON text.
  std::vector<std::string> Committed(const std::vector<size_t>& json_bytes) {
    const ShardLayout layout = SmallLayout(DType::kBFloat16);
    const auto engine = std::move(aio::CreateEngine({.kind = aio::EngineKind::kThreads})).value();
    aio::Engine* const engines[] = {engine.get(), engine.get()};
    const auto file = StateFile::Create(layout, {.folders = {folder_, folder_}}, engines).value();
    for (const size_t size : json_bytes) {
      CommitRecord record{.json = std::string(size, ' ')};
      for (uint32_t i = 0; i < layout.tiles.size(); ++i) {
        record.tiles.push_back({.checksums = OfZeros(*file, layout, TileId{i})});
      }
      EXPECT_TRUE(file->Commit(record).ok());
    }
    return {file->Shares()[0].path, file->Shares()[1].path};
  }

  /// Of what lies before the slots: where the bytes begin that share a checksum with one of them.
  static uint64_t Start(const StateGeometry& plan, uint64_t offset) {
    uint64_t start = 0;
    for (FileOffset next : {plan.layout_offset, plan.commit_offset[0], plan.commit_offset[1]}) {
      if (next.value <= offset) start = next.value;
    }
    return start;
  }

  /// Whether nobody uses a byte that lies before the slots.
  static bool InAGuard(const StateGeometry& plan, uint64_t offset) {
    return std::ranges::any_of(plan.commit_offset, [&](FileOffset place) {
      const FileOffset end = place + plan.commit_bytes;
      return offset >= end.value && offset < (end + kStateAlignment).value;
    });
  }

  static void FlipBit(const std::string& path, uint64_t offset) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(offset));
    const int byte = file.get();
    file.seekp(static_cast<std::streamoff>(offset));
    file.put(static_cast<char>(byte ^ 4));
  }

  /// All that is said of a state, tiles aside.
  static std::vector<std::string> Damages(const std::vector<std::string>& paths) {
    const auto reader = StateReader::Open(paths);
    if (!reader.ok()) return {reader.error().message};
    return (*reader)->CheckHeads();
  }
};

TEST_F(StateReaderTest, ACopyDoesNotReplaceWhatTookItsNameMeanwhile) {
  const std::vector<std::string> paths = Committed({2});
  const auto state = WholeState::Open({paths}).value();
  const std::vector<std::string> targets = {folder_ / "copy0", folder_ / "copy1"};
  const Status copied = CopyState(state, {targets}, [&] {
    std::ofstream(targets[0]) << "mine";
    return false;
  });
  ASSERT_FALSE(copied.ok());
  EXPECT_EQ(copied.error().code, ErrorCode::kInvalidArgument) << copied.error().message;
  EXPECT_EQ(std::filesystem::file_size(targets[0]), 4);
  for (const std::string& target : targets) {
    EXPECT_FALSE(std::filesystem::exists(UnfinishedCopy(target)));
  }
}

TEST_F(StateReaderTest, AFlippedBitAnywhereBeforeTheSlotsIsNamedWithFileAndOffset) {
  uint64_t first = 0;  // other bytes each time
  for (const size_t commits : {1, 2}) {
    const std::vector<std::string> paths = Committed(std::vector<size_t>(commits, 2));
    EXPECT_THAT(Damages(paths), IsEmpty());
    const StateGeometry plan = StateReader::Open(paths).value()->geometry(0);
    for (const std::string& path : paths) {
      // The first fields lie closer to each other.
      const auto next = [](uint64_t offset) {
        return offset + (offset < 256 ? 13 : 251) * kSearchStride;
      };
      for (uint64_t offset = first++; offset < plan.weights_offset[0].value;
           offset = next(offset)) {
        if (InAGuard(plan, offset)) continue;
        FlipBit(path, offset);
        const auto at = [](uint64_t start) {
          return ContainsRegex("at offset " + std::to_string(start) + "[^0-9]");
        };
        EXPECT_THAT(Damages(paths),
                    ElementsAre(AllOf(HasSubstr(path), AnyOf(at(offset), at(Start(plan, offset))))))
            << offset;
        FlipBit(path, offset);
      }
    }
  }
}

TEST_F(StateReaderTest, NothingIsLeftOfALongerRecordThatWasInAPlaceBefore) {
  EXPECT_THAT(Damages(Committed({20000, 20000, 2})), IsEmpty());
}

}  // namespace
}  // namespace penstock::offload
