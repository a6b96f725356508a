#include "offload/state_format.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstring>

#include "offload/byte_fields.h"
#include "offload/commit_record.h"
#include "tests/offload/support.h"

namespace penstock::offload {
namespace {

StateHeader SmallHeader(DType dtype, int slots) {
  return PlanState(kUuid, SmallLayout(dtype), {.slots = slots}, 0);
}

/// The four tiles on paths 1, 0, 1, 0, and nothing on a third.
StateShape ThreePaths() { return {.paths = 3, .path_of_tile = {1, 0, 1, 0}}; }

CommitRecord SmallRecord() {
  CommitRecord record{.sequence = 7,
                      .head = {.step = 30,
                               .optimizer_steps = 28,
                               .skipped_in_a_row = 1,
                               .seed = 99,
                               .compute_threads = 2},
                      .json = "{\"model\":\"x\"}"};
  for (uint32_t i = 0; i < 4; ++i) {
    record.tiles.push_back(
        {.version = 28 + i, .checksums = {.weight = 11 * i, .record = 13 * i}, .slot = i % 2});
  }
  return record;
}

TEST(StateFormatTest, AHeadIsReadBackAsItWasWritten) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const int slots : {1, 2}) {
      const StateHeader header = SmallHeader(dtype, slots);
      const std::vector<std::byte> head = EncodeHead(header);
      EXPECT_EQ(HeadBytes(head)->value, head.size());
      const auto read = DecodeHead(head);
      ASSERT_TRUE(read.ok()) << read.error().message;
      EXPECT_EQ(read->uuid, header.uuid);
      EXPECT_EQ(read->geometry.slots, slots);
      EXPECT_EQ(read->geometry.file_bytes, header.geometry.file_bytes);
      EXPECT_EQ(read->layout.planes(TileId{0}).weight().encoding, EncodingOf(dtype));
      EXPECT_EQ(read->layout.model.parameters, header.layout.model.parameters);
      ASSERT_EQ(read->layout.tiles.size(), 4);
      for (size_t i = 0; i < 4; ++i) {
        EXPECT_EQ(read->layout.tiles[i].begin, header.layout.tiles[i].begin);
        EXPECT_EQ(read->layout.tiles[i].elements, header.layout.tiles[i].elements);
        EXPECT_EQ(read->layout.tiles[i].group, header.layout.tiles[i].group);
      }
      ASSERT_EQ(read->layout.model.modules.size(), 2);
      EXPECT_EQ(read->layout.TileCount(ModuleId{0}), 3);
      EXPECT_EQ(read->layout.first_tile[1], 3);
      EXPECT_EQ(read->layout.model.modules[0].tensors[1].name, "a.bias");
      EXPECT_EQ(read->layout.model.modules[0].tensors[0].elements, 12000);
    }
  }
}

TEST(StateFormatTest, TheStatesOfEveryOptimizerAreReadBackAsTheyWereWritten) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const Moments& moments : {Moments{}, Moments{.exp_avg_sq = false},
                                   Moments{.exp_avg = false}, Moments{.dtype = DType::kBFloat16},
                                   Moments{.exp_avg_sq = false, .dtype = DType::kBFloat16},
                                   Moments{.exp_avg = false, .dtype = DType::kBFloat16}}) {
      const ShardLayout layout = SmallLayout(dtype, moments);
      const StateHeader header = PlanState(kUuid, layout, {}, 0);
      const auto read = DecodeHead(EncodeHead(header));
      ASSERT_TRUE(read.ok()) << read.error().message;
      EXPECT_EQ(read->layout, layout);
      const uint64_t count = (moments.exp_avg ? 1 : 0) + (moments.exp_avg_sq ? 1 : 0);
      const Bytes lo = dtype == DType::kBFloat16 ? 2_B : 0_B;
      EXPECT_EQ(layout.RecordBytes(TileId{0}), (lo + SizeOf(moments.dtype) * count) * 8192);
    }
  }
}

// The constants below are the checksums of what commit c5eeba7 wrote for the same inputs. That
// commit knew version 1 alone, and no guards: so version 1 is, without them, byte for byte as
// before.
TEST(StateFormatTest, AHeadOfVersion1HasTheBytesThatItHadBeforeThereWasAnother) {
  const struct {
    DType dtype;
    int slots;
    uint64_t checksum;
  } heads[] = {{DType::kFloat32, 1, 0x3d0bb340749c6883},
               {DType::kFloat32, 2, 0xa23cdcddede3e6cc},
               {DType::kBFloat16, 1, 0xdbe10366ee4cf610},
               {DType::kBFloat16, 2, 0x622f87c6d3aeb267}};
  for (const auto& [dtype, slots, checksum] : heads) {
    const StateHeader header =
        PlanState(kUuid, SmallLayout(dtype), {.slots = slots, .guards = false}, 0);
    EXPECT_EQ(FormatVersionOf(header.layout), 1);
    EXPECT_EQ(Checksum(EncodeHead(header)), checksum);
  }
  const uint64_t of_path[] = {0x1c3adefeba0f6075, 0x8139e841a552a4b1, 0x2514d0399f0ea165};
  StateShape shape = ThreePaths();
  shape.guards = false;
  for (uint32_t path = 0; path < 3; ++path) {
    const StateHeader header = PlanState(kUuid, SmallLayout(DType::kBFloat16), shape, path);
    EXPECT_EQ(Checksum(EncodeHead(header)), of_path[path]);
  }
}

TEST(StateFormatTest, ACommitOfVersion1HasTheBytesThatItHadBeforeThereWasAnother) {
  EXPECT_EQ(Checksum(EncodeCommit(kUuid, SmallRecord())), 0x20a1a153108e749f);
}

/// Makes the checksums of a head hold again after a change of its descriptors.
void Seal(const StateGeometry& plan, std::vector<std::byte>& head) {
  const auto part = [&](FileOffset from, Bytes size) {
    return std::vector<std::byte>(head.begin() + static_cast<ptrdiff_t>(from.value),
                                  head.begin() + static_cast<ptrdiff_t>((from + size).value));
  };
  std::vector<std::byte> hashed = part(plan.layout_offset, plan.layout_bytes);
  const auto descriptors = part(plan.descriptors_offset, plan.descriptors_bytes);
  hashed.insert(hashed.end(), descriptors.begin(), descriptors.end());
  const std::span<std::byte> header = std::span(head).first(kHeaderBytes.value);
  Put<uint64_t>(header, 200, Checksum(hashed));
  Put<uint64_t>(header, 4088, Checksum(header.first(4088)));
}

TEST(StateFormatTest, ADescriptorWithOtherStatesThanTheFirstIsRefused) {
  const StateHeader header = SmallHeader(DType::kBFloat16, 2);
  const struct {
    size_t tile;
    size_t at;
    uint8_t value;
  } changes[] = {
      {0, 25, 2},              // a count that is not that of the kinds
      {0, 27, 7},              // a kind that is none
      {0, 28, 2},              // exp_avg twice
      {0, 33, 3},              // fp16
      {0, 33, 2},              // moments of two dtypes
      {1, 28, 0},              // another record than tile 0 has
      {2, 34, 2}, {3, 32, 1},  // a lo that is fp32
      {0, 31, 3},              // a kind behind the last
  };
  for (const auto& change : changes) {
    std::vector<std::byte> head = EncodeHead(header);
    const size_t at = header.geometry.descriptors_offset.value + 64 * change.tile + change.at;
    ASSERT_NE(head[at], std::byte{change.value});
    head[at] = std::byte{change.value};
    Seal(header.geometry, head);
    const auto read = DecodeHead(head);
    ASSERT_FALSE(read.ok()) << change.tile << ", " << change.at;
    EXPECT_EQ(read.error().code, ErrorCode::kCorruption);
    EXPECT_THAT(read.error().message, ::testing::HasSubstr("states"));
  }
  std::vector<std::byte> same = EncodeHead(header);
  Seal(header.geometry, same);
  EXPECT_TRUE(DecodeHead(same).ok());
}

TEST(StateFormatTest, StatesThatNoOptimizerKeepsAreRefused) {
  const StateHeader header = SmallHeader(DType::kBFloat16, 2);
  std::vector<std::byte> head = EncodeHead(header);
  for (size_t tile = 0; tile < 4; ++tile) {
    // A lo alone.
    const size_t at = header.geometry.descriptors_offset.value + 64 * tile;
    head[at + 25] = std::byte{1};
    for (const size_t byte : {27, 28, 33, 34}) head[at + byte] = std::byte{0};
  }
  Seal(header.geometry, head);
  EXPECT_EQ(DecodeHead(head).error().code, ErrorCode::kCorruption);
}

TEST(StateFormatTest, TheHeadOfEachPathIsReadBackAsItWasWritten) {
  for (uint32_t path = 0; path < 3; ++path) {
    const StateHeader header = PlanState(kUuid, SmallLayout(DType::kBFloat16), ThreePaths(), path);
    const auto read = DecodeHead(EncodeHead(header));
    ASSERT_TRUE(read.ok()) << read.error().message;
    EXPECT_EQ(read->uuid, kUuid);
    EXPECT_EQ(read->paths, 3);
    EXPECT_EQ(read->path, path);
    EXPECT_EQ(read->geometry.weights_offset[1], header.geometry.weights_offset[1]);
    EXPECT_EQ(read->geometry.file_bytes, header.geometry.file_bytes);
    ASSERT_EQ(read->tiles.size(), 4);
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(read->tiles[i].path, ThreePaths().path_of_tile[i]);
      EXPECT_EQ(read->tiles[i].weight, header.tiles[i].weight);
      EXPECT_EQ(read->tiles[i].record, header.tiles[i].record);
    }
  }
}

TEST(StateFormatTest, EachPathHoldsItsTilesWithoutGapsAndNoOthers) {
  const ShardLayout layout = SmallLayout(DType::kBFloat16);
  std::vector<StateHeader> headers;
  for (uint32_t path = 0; path < 3; ++path) {
    headers.push_back(PlanState(kUuid, layout, ThreePaths(), path));
  }
  const std::vector<TilePlace>& tiles = headers[0].tiles;
  EXPECT_EQ(tiles[0].weight, 0_B);
  EXPECT_EQ(tiles[1].weight, 0_B);
  EXPECT_EQ(tiles[2].weight, layout.WeightBytes(TileId{0}));
  EXPECT_EQ(tiles[3].weight, layout.WeightBytes(TileId{1}));
  EXPECT_EQ(tiles[2].record, layout.RecordBytes(TileId{0}));
  const uint64_t elements[] = {8192, 12288, 0};
  for (uint32_t path = 0; path < 3; ++path) {
    const StateGeometry& plan = headers[path].geometry;
    EXPECT_EQ(plan.file_bytes - Bytes{plan.weights_offset[0].value},
              24_B * elements[path] + 2 * kStateAlignment);
    EXPECT_EQ(plan.commit_offset[1], headers[0].geometry.commit_offset[1]);
  }
  EXPECT_THAT(PathShares(layout, tiles, 3),
              ::testing::ElementsAre(0.4, ::testing::DoubleEq(0.6), 0));
}

TEST(StateFormatTest, HeadsOfOneStateDifferOnlyInTheHeader) {
  const ShardLayout layout = SmallLayout(DType::kBFloat16);
  const auto first = EncodeHead(PlanState(kUuid, layout, ThreePaths(), 0));
  const auto second = EncodeHead(PlanState(kUuid, layout, ThreePaths(), 1));
  ASSERT_EQ(first.size(), second.size());
  EXPECT_TRUE(std::equal(first.begin() + 4096, first.end(), second.begin() + 4096));
}

TEST(StateFormatTest, APathBeyondTheNumberOfPathsIsRefused) {
  StateHeader header = PlanState(kUuid, SmallLayout(DType::kBFloat16), ThreePaths(), 0);
  header.path = 3;
  EXPECT_EQ(DecodeHead(EncodeHead(header)).error().code, ErrorCode::kCorruption);
  header.path = 0;
  header.tiles[2].path = 3;
  EXPECT_EQ(DecodeHead(EncodeHead(header)).error().code, ErrorCode::kCorruption);
}

TEST(StateFormatTest, TwoSlotsTake24BytesAParameterAndOneTakes12) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const ShardLayout layout = SmallLayout(dtype);
    const StateGeometry two = PlanState({}, layout, {.slots = 2}, 0).geometry;
    const StateGeometry one = PlanState({}, layout, {.slots = 1}, 0).geometry;
    const Bytes before_slots{two.weights_offset[0].value};
    EXPECT_EQ(two.file_bytes - before_slots, 24_B * layout.shard_elements() + 2 * kStateAlignment);
    EXPECT_EQ(one.file_bytes - before_slots, 12_B * layout.shard_elements() + kStateAlignment);
  }
}

TEST(StateFormatTest, EveryRegionStartsAtTheAlignmentAndNoneOverlap) {
  const ShardLayout layout = SmallLayout(DType::kBFloat16);
  const StateGeometry plan = PlanState({}, layout, {}, 0).geometry;
  const FileOffset starts[] = {plan.layout_offset,     plan.descriptors_offset,
                               plan.commit_offset[0],  plan.commit_offset[1],
                               plan.weights_offset[0], plan.records_offset[0],
                               plan.weights_offset[1], plan.records_offset[1]};
  FileOffset before{};
  for (FileOffset start : starts) {
    EXPECT_EQ(start.value % kStateAlignment.value, 0);
    EXPECT_GT(start, before);
    before = start;
  }
}

TEST(StateFormatTest, ABlockBesideACommitPlaceOrASlotBelongsToNoOther) {
  const ShardLayout layout = SmallLayout(DType::kBFloat16);
  const StateGeometry plan = PlanState({}, layout, {}, 0).geometry;
  EXPECT_EQ(plan.commit_offset[1], plan.commit_offset[0] + plan.commit_bytes + kStateAlignment);
  EXPECT_EQ(plan.weights_offset[0], plan.commit_offset[1] + plan.commit_bytes + kStateAlignment);
  EXPECT_EQ(
      plan.weights_offset[1],
      plan.records_offset[0] + AlignUp(layout.record_bytes(), kStateAlignment) + kStateAlignment);
  EXPECT_EQ(
      plan.frozen_offset,
      plan.records_offset[1] + AlignUp(layout.record_bytes(), kStateAlignment) + kStateAlignment);
}

TEST(StateFormatTest, AStateWithoutGuardsIsReadAsItIs) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const StateHeader header = PlanState(kUuid, SmallLayout(dtype), {.guards = false}, 0);
    const auto read = DecodeHead(EncodeHead(header));
    ASSERT_TRUE(read.ok()) << read.error().message;
    EXPECT_FALSE(read->geometry.guards);
    EXPECT_EQ(read->geometry.file_bytes, header.geometry.file_bytes);
    EXPECT_EQ(read->geometry.commit_offset[1],
              read->geometry.commit_offset[0] + read->geometry.commit_bytes);
    EXPECT_EQ(HeaderOfPath(*read, 0).geometry.file_bytes, header.geometry.file_bytes);
  }
}

TEST(StateFormatTest, AFlippedBitAnywhereInTheHeadIsFound) {
  const StateHeader header = SmallHeader(DType::kBFloat16, 2);
  std::vector<std::byte> head = EncodeHead(header);
  const auto covered = [&](size_t at) {
    const StateGeometry& plan = header.geometry;
    return at < kHeaderBytes.value ||
           (at >= plan.layout_offset.value &&
            at < (plan.layout_offset + plan.layout_bytes).value) ||
           (at >= plan.descriptors_offset.value &&
            at < (plan.descriptors_offset + plan.descriptors_bytes).value);
  };
  for (size_t at = 0; at < head.size(); ++at) {
    if (!covered(at)) continue;
    head[at] ^= std::byte{0x10};
    const auto read = DecodeHead(head);
    ASSERT_FALSE(read.ok()) << at;
    EXPECT_EQ(read.error().code, ErrorCode::kCorruption) << at;
    head[at] ^= std::byte{0x10};
  }
}

TEST(StateFormatTest, AHeaderOfAnotherVersionIsToldFromADamagedOne) {
  std::vector<std::byte> head = EncodeHead(SmallHeader(DType::kBFloat16, 2));
  const std::span<std::byte> header = std::span(head).first(kHeaderBytes.value);
  Put<uint32_t>(header, 8, kStateFormatVersion + 1);
  EXPECT_EQ(DecodeHead(head).error().code, ErrorCode::kCorruption);
  Put<uint64_t>(header, 4088, Checksum(header.first(4088)));
  const Error other = DecodeHead(head).error();
  EXPECT_EQ(other.code, ErrorCode::kUnavailable);
  EXPECT_THAT(other.message, ::testing::HasSubstr("format version 3"));
}

TEST(StateFormatTest, ACommitIsReadBackAsItWasWritten) {
  const Uuid uuid = SmallHeader(DType::kBFloat16, 2).uuid;
  const CommitRecord record = SmallRecord();
  std::vector<std::byte> bytes = EncodeCommit(uuid, record);
  bytes.resize(bytes.size() + 1000);  // a place is larger than its record
  const auto read = DecodeCommit(uuid, bytes);
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->sequence, 7);
  EXPECT_EQ(read->head.step, 30);
  EXPECT_EQ(read->head.optimizer_steps, 28);
  EXPECT_EQ(read->head.skipped_in_a_row, 1);
  EXPECT_EQ(read->head.seed, 99);
  EXPECT_EQ(read->head.compute_threads, 2);
  EXPECT_EQ(read->json, record.json);
  ASSERT_EQ(read->tiles.size(), 4);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(read->tiles[i].version, record.tiles[i].version);
    EXPECT_EQ(read->tiles[i].checksums, record.tiles[i].checksums);
    EXPECT_EQ(read->tiles[i].slot, record.tiles[i].slot);
  }
}

TEST(StateFormatTest, ADamagedOrTornCommitIsRefused) {
  const Uuid uuid = SmallHeader(DType::kBFloat16, 2).uuid;
  const std::vector<std::byte> whole = EncodeCommit(uuid, SmallRecord());
  for (size_t at = 0; at < whole.size(); ++at) {
    std::vector<std::byte> damaged = whole;
    damaged[at] ^= std::byte{1};
    EXPECT_FALSE(DecodeCommit(uuid, damaged).ok()) << at;
  }
  for (size_t kept = 8; kept < whole.size(); kept += 8) {
    std::vector<std::byte> torn = whole;
    std::memset(torn.data() + kept, 0, torn.size() - kept);
    EXPECT_FALSE(DecodeCommit(uuid, torn).ok()) << kept;
  }
}

TEST(StateFormatTest, ACommitOfAnotherFileIsRefusedAndAnEmptyPlaceHoldsNone) {
  const Uuid uuid = SmallHeader(DType::kBFloat16, 2).uuid;
  Uuid other = uuid;
  other[3] ^= 1;
  EXPECT_EQ(DecodeCommit(other, EncodeCommit(uuid, SmallRecord())).error().code,
            ErrorCode::kCorruption);
  EXPECT_EQ(DecodeCommit(uuid, std::vector<std::byte>(4096)).error().code, ErrorCode::kNotFound);
}

TEST(ChecksumTest, PiecesGiveTheChecksumOfTheWhole) {
  const ShardLayout layout = SmallLayout(DType::kBFloat16);
  const TileId tile{0};
  std::vector<std::byte> record(layout.RecordBytes(tile).value);
  for (size_t i = 0; i < record.size(); ++i) record[i] = static_cast<std::byte>(i * 31 >> 3);
  const std::vector<std::byte> weight(record.begin(), record.begin() + 2 * 8192);
  TileHasher hasher;
  hasher.Reset(17, layout.planes(tile), 8192);
  for (uint64_t i = 0; i < 2; ++i) hasher.Add(weight, record, i * 4096, 4096);
  EXPECT_EQ(hasher.Finish(),
            (TileChecksums{WeightChecksum(17, weight), RecordChecksum(17, layout, tile, record)}));
}

TEST(ChecksumTest, ABlockOfAnotherFileRankTileOrVersionNeverPasses) {
  const Uuid uuid{1};
  const ShardLayout layout = SmallLayout(DType::kBFloat16);
  const ShardLayout second = MakeShard(layout.model, 8192, 2, 1);
  const uint64_t seed = TileSeed(uuid, layout, TileId{5}, 9);
  EXPECT_NE(seed, TileSeed(Uuid{2}, layout, TileId{5}, 9));
  EXPECT_NE(seed, TileSeed(uuid, second, TileId{5}, 9));
  EXPECT_NE(seed, TileSeed(uuid, layout, TileId{6}, 9));
  EXPECT_NE(seed, TileSeed(uuid, layout, TileId{5}, 10));
}

}  // namespace
}  // namespace penstock::offload
