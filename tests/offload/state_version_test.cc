// What only version 2 of the state file can hold: groups, frozen tiles, ranks.
#include <gmock/gmock.h>

#include <algorithm>
#include <functional>
#include <limits>

#include "offload/byte_fields.h"
#include "offload/commit_record.h"
#include "offload/state_format.h"
#include "tests/offload/support.h"
#include "tests/search_share.h"

namespace penstock::offload {
namespace {

ModelLayout SmallModel() { return SmallLayout(DType::kBFloat16).model; }

/// Three groups, one of them frozen, as rank 1 of 3 has them; on two paths.
StateHeader MixedHeader(uint32_t path = 0) {
  ModelLayout model{
      .groups = {{.name = "bf16", .planes = MakePlanes(DType::kBFloat16)},
                 {.name = "fp16", .planes = MakePlanes(DType::kFloat16), .parameter_group = 7},
                 {.name = "base", .planes = MakeFrozenPlanes(DType::kBFloat16), .frozen = true}},
      .modules = {MakeModule("a", {{"a.base", {3, 8192}, GroupId{2}},
                                   {"a.half", {9000}, GroupId{1}},
                                   {"a.weight", {30000}, GroupId{0}}})},
      .parameters = 3 * 8192 + 9000 + 30000};
  const ShardLayout shard = MakeShard(std::move(model), 8192, 3, 1);
  StateShape shape{.commit_json = 128_KiB, .paths = 2};
  for (const TileId tile : shard.Tiles()) shape.path_of_tile.push_back(Index(tile) % 2);
  return PlanState(kUuid, shard, shape, path);
}

/// Makes the checksums of a head hold again.
void Seal(const StateHeader& header, std::vector<std::byte>& head) {
  const StateGeometry& plan = header.geometry;
  const auto part = [&](FileOffset from, Bytes size) {
    return std::span(head).subspan(from.value, size.value);
  };
  const auto text = part(plan.layout_offset, plan.layout_bytes);
  std::vector<std::byte> hashed(text.begin(), text.end());
  const auto descriptors = part(plan.descriptors_offset, plan.descriptors_bytes);
  hashed.insert(hashed.end(), descriptors.begin(), descriptors.end());
  Put<uint64_t>(std::span(head), 200, Checksum(hashed));
  Put<uint64_t>(std::span(head), 4088, Checksum(std::span(head).first(4088)));
}

TEST(StateVersionTest, WhatVersion1CanExpressIsOfVersion1) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    EXPECT_EQ(FormatVersionOf(SmallLayout(dtype)), 1);
    EXPECT_EQ(FormatVersionOf(SmallLayout(dtype, {.exp_avg = false, .dtype = DType::kBFloat16})),
              1);
  }
}

TEST(StateVersionTest, AStateThatVersion1CannotExpressIsOfVersion2AndReadBackUnchanged) {
  const std::pair<const char*, std::function<void(ModelLayout&)>> cases[] = {
      {"fp16", [](ModelLayout& m) { m.groups = DecayGroups(MakePlanes(DType::kFloat16)); }},
      {"no moments",
       [](ModelLayout& m) {
         m.groups =
             DecayGroups(MakePlanes(DType::kBFloat16, {.exp_avg = false, .exp_avg_sq = false}));
       }},
      {"names", [](ModelLayout& m) { m.groups[1].name = "biases"; }},
      {"parameter group", [](ModelLayout& m) { m.groups[1].parameter_group = 4; }},
      {"two dtypes", [](ModelLayout& m) { m.groups[1].planes = MakePlanes(DType::kFloat32); }},
      {"frozen",
       [](ModelLayout& m) {
         m.groups[1].planes = MakeFrozenPlanes(DType::kBFloat16);
         m.groups[1].frozen = true;
       }},
      {"8 bits",
       [](ModelLayout& m) {
         m.groups[0].planes = Planes{MakePlane(PlaneRole::kWeight, Encoding::kFloat32),
                                     MakeBlockwise8Plane(PlaneRole::kExpAvg)};
       }},
      {"a third group",
       [](ModelLayout& m) {
         m.groups.push_back({.name = "c", .planes = MakePlanes(DType::kBFloat16)});
       }},
  };
  for (const auto& [what, change] : cases) {
    ModelLayout model = SmallModel();
    change(model);
    const ShardLayout layout = MakeShard(std::move(model), 8192);
    EXPECT_EQ(FormatVersionOf(layout), 2) << what;
    const std::vector<std::byte> head = EncodeHead(PlanState(kUuid, layout, {}, 0));
    const auto read = DecodeHead(head);
    ASSERT_TRUE(read.ok()) << what << ": " << read.error().message;
    EXPECT_EQ(read->layout, layout) << what;
  }
}

TEST(StateVersionTest, EveryRankReadsBackItsOwnShare) {
  for (const uint32_t world_size : {2U, 3U, 64U}) {
    for (uint32_t rank = 0; rank < world_size; ++rank) {
      const ShardLayout layout = MakeShard(SmallModel(), 8192, world_size, rank);
      const auto read = DecodeHead(EncodeHead(PlanState(kUuid, layout, {}, 0)));
      ASSERT_TRUE(read.ok()) << read.error().message;
      EXPECT_EQ(read->layout, layout);
    }
  }
}

TEST(StateVersionTest, FrozenWeightsLieOnceBehindTheSlots) {
  Bytes of_all;
  for (const uint32_t path : {0, 1}) {
    const StateHeader header = MixedHeader(path);
    const StateGeometry& plan = header.geometry;
    Bytes frozen;
    for (const TileId tile : header.layout.Tiles()) {
      const TilePlace& place = header.tiles[Index(tile)];
      EXPECT_EQ(place.frozen, header.layout.frozen(tile));
      if (!place.frozen || place.path != path) continue;
      EXPECT_EQ(PartOffset(plan, place, Part::kWeight, 0),
                PartOffset(plan, place, Part::kWeight, 1));
      frozen += header.layout.WeightBytes(tile);
    }
    of_all += frozen;
    EXPECT_EQ(plan.frozen_bytes, frozen);
    EXPECT_GE(plan.frozen_offset, plan.records_offset[1]);
    EXPECT_EQ(plan.file_bytes, Bytes{plan.frozen_offset.value} + frozen);
  }
  EXPECT_GT(of_all, 0_B);
}

TEST(StateVersionTest, TheHeadOfEachPathIsReadBackAsItWasWritten) {
  for (const uint32_t path : {0, 1}) {
    const StateHeader header = MixedHeader(path);
    const auto read = DecodeHead(EncodeHead(header));
    ASSERT_TRUE(read.ok()) << read.error().message;
    EXPECT_EQ(read->layout, header.layout);
    EXPECT_EQ(read->tiles, header.tiles);
    EXPECT_EQ(read->geometry.frozen_offset, header.geometry.frozen_offset);
    EXPECT_EQ(read->geometry.commit_json, 128_KiB);
  }
}

TEST(StateVersionTest, AHeadWithAnyForgedByteIsRefusedOrReadAsItIs) {
  const StateHeader header = MixedHeader();
  const std::vector<std::byte> whole = EncodeHead(header);
  size_t refused = 0;
  for (const std::byte flip : {std::byte{1}, std::byte{4}, std::byte{0x80}}) {
    for (size_t at = 0; at < whole.size(); at += kSearchStride) {
      std::vector<std::byte> head = whole;
      head[at] ^= flip;
      Seal(header, head);
      const auto read = DecodeHead(head);
      refused += read.ok() ? 0 : 1;
      if (!read.ok() || head == whole) continue;
      const std::vector<std::byte> again = EncodeHead(*read);
      // What no checksum covers lies between the parts.
      const auto layout = header.geometry.layout_offset.value + header.geometry.layout_bytes.value;
      const bool between =
          (at >= layout && at < header.geometry.descriptors_offset.value) ||
          at >= (header.geometry.descriptors_offset + header.geometry.descriptors_bytes).value;
      EXPECT_TRUE(between || again == head) << at;
    }
  }
  EXPECT_GT(refused, SearchShare(10000));
}

TEST(StateVersionTest, AForgedGroupIsRefusedAndANewerPlaneIsToldFromIt) {
  const StateHeader header = MixedHeader();
  const std::vector<std::byte> whole = EncodeHead(header);
  const auto with = [&](const std::string& from, const std::string& to) {
    EXPECT_EQ(from.size(), to.size());
    std::vector<std::byte> head = whole;
    const auto bytes = std::as_bytes(std::span(from));
    const auto found = std::search(head.begin(), head.end(), bytes.begin(), bytes.end());
    EXPECT_NE(found, head.end()) << from;
    std::ranges::copy(std::as_bytes(std::span(to)), found);
    Seal(header, head);
    return DecodeHead(head).status();
  };
  const struct {
    const char* from;
    const char* to;
    ErrorCode code;
  } cases[] = {
      {"\"frozen\":true", "\"frozen\":null", ErrorCode::kCorruption},
      {"\"frozen\":false", "\"frozen\": true", ErrorCode::kCorruption},
      {"\"role\":\"exp_avg\"", "\"role\":\"exp_xyz\"", ErrorCode::kUnavailable},
      {"\"encoding\":\"int16\"", "\"encoding\":\"int88\"", ErrorCode::kUnavailable},
      {"\"encoding\":\"int16\"", "\"encoding\": \"fp32\"", ErrorCode::kCorruption},
      {"\"role\":\"lo\"", "\"role\":\"no\"", ErrorCode::kUnavailable},
      {"\"block_bytes\":8192", "\"block_bytes\":8193", ErrorCode::kCorruption},
      {"\"parameter_group\":7", "\"parameter_group\":x", ErrorCode::kCorruption},
      {"\"group\":2", "\"group\":3", ErrorCode::kCorruption},
  };
  for (const auto& [from, to, code] : cases) {
    const Status status = with(from, to);
    ASSERT_FALSE(status.ok()) << to;
    EXPECT_EQ(status.error().code, code) << to << ": " << status.error().message;
  }
}

TEST(StateVersionTest, ALayoutWithoutGroupsOrWithMomentsThatNoRuleKeepsIsRefused) {
  const ShardLayout nothing = MakeShard({}, 8192);
  EXPECT_EQ(DecodeHead(EncodeHead(PlanState(kUuid, nothing, {}, 0))).error().code,
            ErrorCode::kCorruption);
  ModelLayout model = SmallModel();
  model.groups[1].planes = Planes{MakePlane(PlaneRole::kWeight, Encoding::kFloat32),
                                  MakePlane(PlaneRole::kExpAvg, Encoding::kInt16)};
  const ShardLayout forged = MakeShard(std::move(model), 8192);
  EXPECT_EQ(DecodeHead(EncodeHead(PlanState(kUuid, forged, {}, 0))).error().code,
            ErrorCode::kCorruption);
}

TEST(StateVersionTest, ACommitNamesItsRankAndSessionAndIsNoOtherRanks) {
  const StateHeader header = MixedHeader();
  const StateIdentity mine(kUuid, header.layout);
  const StateIdentity other(kUuid, MakeShard(header.layout.model, 8192, 3, 2));
  CommitRecord record{
      .sequence = 3, .head = {.step = 2, .optimizer_steps = 2}, .session = 99, .json = "{}"};
  record.tiles.resize(header.layout.tiles.size());
  const std::vector<std::byte> bytes = EncodeCommit(mine, record);
  EXPECT_EQ(bytes.size(), CommitBytes(2, record.tiles.size(), 2_B).value);
  const auto read = DecodeCommit(mine, bytes);
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->session, 99);
  EXPECT_EQ(DecodeCommit(other, bytes).error().code, ErrorCode::kCorruption);
  EXPECT_EQ(DecodeCommit(kUuid, bytes).error().code, ErrorCode::kCorruption);
}

TEST(StateVersionTest, ACommitKeepsTheLossScaleAndRefusesOneThatCannotBe) {
  const StateHeader header = MixedHeader();
  const StateIdentity state(kUuid, header.layout);
  CommitRecord record{.sequence = 3, .head = {.step = 9, .optimizer_steps = 7}, .json = "{}"};
  record.tiles.resize(header.layout.tiles.size());
  const auto without = DecodeCommit(state, EncodeCommit(state, record));
  ASSERT_TRUE(without.ok()) << without.error().message;
  EXPECT_FALSE(without->head.loss_scale);
  record.head.loss_scale = {.scale = 0.5, .steps_without_overflow = 4, .hysteresis = 2};
  const auto with = DecodeCommit(state, EncodeCommit(state, record));
  ASSERT_TRUE(with.ok()) << with.error().message;
  EXPECT_EQ(with->head, record.head);
  const double infinity = std::numeric_limits<double>::infinity();
  for (const LossScaleState& forged :
       {LossScaleState{.scale = -1}, LossScaleState{.scale = infinity},
        LossScaleState{.scale = 0, .steps_without_overflow = 1},
        LossScaleState{.scale = 1, .steps_without_overflow = 10},
        LossScaleState{.scale = 1, .hysteresis = 0}}) {
    record.head.loss_scale = forged;
    const auto refused = DecodeCommit(state, EncodeCommit(state, record));
    ASSERT_FALSE(refused.ok()) << forged.scale;
    EXPECT_EQ(refused.error().code, ErrorCode::kCorruption);
  }
}

}  // namespace
}  // namespace penstock::offload
