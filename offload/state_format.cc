#include "offload/state_format.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include "base/check.h"
#include "offload/header_fields.h"
#include "offload/layout_text.h"
#include "offload/tile_descriptors.h"

namespace penstock::offload {
namespace {

constexpr std::array<char, 8> kHeaderMagic = {'P', 'E', 'N', 'S', 'T', 'O', 'C', 'K'};
constexpr std::array<char, 8> kUnfinishedMagic = {'P', 'S', 'M', 'A', 'K', 'I', 'N', 'G'};
constexpr uint64_t kFlagTwoSlots = 1;
constexpr uint64_t kFlagSplitMaster = 2;
constexpr uint64_t kFlagGuards = 4;

/// The file may be whole, but it was written by another version of the program.
Error Unknown(const std::string& what) {
  return MakeError(ErrorCode::kUnavailable,
                   "it has {}, which this version of penstock does not read (format {})", what,
                   kStateFormatVersion);
}

/// The places of the tiles of all paths, and the bytes of each path's regions.
struct TilePlan {
  std::vector<TilePlace> tiles;
  struct Regions {
    Bytes weights;  ///< bytes of a slot
    Bytes records;  ///< bytes of a slot
    Bytes frozen;
  };
  std::vector<Regions> paths;
};

TilePlan PlanTiles(const ShardLayout& layout, const StateShape& shape) {
  PENSTOCK_CHECK(shape.path_of_tile.size() == (shape.paths == 1 ? 0 : layout.tiles.size()));
  TilePlan plan{.tiles = {}, .paths = std::vector<TilePlan::Regions>(shape.paths)};
  for (const TileId tile : layout.Tiles()) {
    const uint16_t path = shape.paths == 1 ? 0 : shape.path_of_tile[Index(tile)];
    PENSTOCK_CHECK(path < shape.paths);
    TilePlan::Regions& next = plan.paths[path];
    const bool frozen = layout.frozen(tile);
    Bytes& weights = frozen ? next.frozen : next.weights;
    plan.tiles.push_back(
        {.path = path, .frozen = frozen, .weight = weights, .record = frozen ? 0_B : next.records});
    weights += layout.WeightBytes(tile);
    next.records += layout.RecordBytes(tile);
  }
  return plan;
}

Status CheckHeader(std::span<const std::byte> bytes) {
  const auto magic = ReadField(bytes, field::kMagic);
  const bool unfinished = magic == kUnfinishedMagic;
  if (!unfinished && magic != kHeaderMagic) {
    return Corrupt("no magic at offset 0: not a penstock state file, or a damaged one");
  }
  // Done for any version, so that damage does not look like another version.
  if (Checksum(bytes.first(field::kChecksum.offset)) != ReadField(bytes, field::kChecksum)) {
    return Corrupt("the checksum of the header at offset 0 does not hold");
  }
  if (unfinished) {
    return MakeError(ErrorCode::kNotFound,
                     "it was never finished: the run ended before its first commit");
  }
  const uint32_t version = ReadField(bytes, field::kVersion);
  if (version == 0 || version > kStateFormatVersion) {
    return Unknown(fmt::format("format version {}", version));
  }
  const uint64_t flags = ReadField(bytes, field::kFlags);
  const uint32_t dtype = ReadField(bytes, field::kDType);
  const bool split = (flags & kFlagSplitMaster) != 0;
  const bool known = (flags & ~(kFlagTwoSlots | kFlagSplitMaster | kFlagGuards)) == 0 &&
                     dtype == static_cast<uint32_t>(split ? DType::kBFloat16 : DType::kFloat32);
  if (version == 1 ? !known : (flags & ~(kFlagTwoSlots | kFlagGuards)) != 0) {
    return Unknown("feature flags or a weight dtype");
  }
  const uint32_t world_size = ReadField(bytes, field::kWorldSize);
  if (world_size == 0 || world_size > kMaxRanks || ReadField(bytes, field::kRank) >= world_size) {
    return Corrupt("the world size and the rank do not hold");
  }
  if (version == 1 && world_size != 1) return Unknown("several ranks");
  const uint32_t paths = ReadField(bytes, field::kPaths);
  if (paths == 0 || paths > kMaxPaths || ReadField(bytes, field::kPath) >= paths) {
    return Corrupt("the number of paths and the index of this one do not hold");
  }
  return {};
}

/// The places of a head's parts whose sizes its header gives, one after the other.
struct HeadParts {
  Bytes layout;       ///< size of the text
  Bytes descriptors;  ///< size of all of them
  Bytes descriptors_offset;
  Bytes end;  ///< begin of commit place 0
};

Result<HeadParts> PartsOf(std::span<const std::byte> header) {
  PENSTOCK_TRY(CheckHeader(header));
  HeadParts parts{.layout = Bytes{ReadField(header, field::kLayoutSize)}};
  const uint64_t tiles = ReadField(header, field::kTiles);
  const bool some = tiles > 0 || ReadField(header, field::kVersion) > 1;
  if (!some || tiles > kMaxTiles || parts.layout > kMaxLayoutBytes) {
    return Corrupt(fmt::format("the header names {} tiles and a layout of {} bytes", tiles,
                               parts.layout.value));
  }
  parts.descriptors = kDescriptorBytes * tiles;
  parts.descriptors_offset = kHeaderBytes + AlignUp(parts.layout, kStateAlignment);
  parts.end = parts.descriptors_offset + AlignUp(parts.descriptors, kStateAlignment);
  return parts;
}

/// What of a head lies at an offset, for messages.
std::string PartAt(const HeadParts& parts, uint32_t version, size_t offset) {
  if (offset < kHeaderBytes.value) return FieldAt(version, offset);
  if (offset < parts.descriptors_offset.value) return "the layout text";
  return fmt::format("the descriptor of tile {}",
                     (offset - parts.descriptors_offset.value) / kDescriptorBytes.value);
}

/// Whether a head is what this program writes for what it says; what lies between header, layout
/// and descriptors is not looked at. So there is one place for each tile and region, and nothing
/// that uses a state has to doubt it.
Status CheckAsWritten(const HeadParts& parts, std::span<const std::byte> found,
                      std::span<const std::byte> expected) {
  const struct {
    size_t begin;
    size_t size;
  } regions[] = {
      {0, field::kLayoutChecksum.offset},  // with the sizes of the next two
      {kHeaderBytes.value, parts.layout.value},
      {parts.descriptors_offset.value, parts.descriptors.value},
      {field::kLayoutChecksum.offset, kHeaderBytes.value - field::kLayoutChecksum.offset}};
  const uint32_t version = ReadField(found, field::kVersion);
  for (const auto& [begin, size] : regions) {
    const auto region = found.subspan(begin, size);
    const auto differs = std::ranges::mismatch(region, expected.subspan(begin, size)).in1;
    if (differs == region.end()) continue;
    const size_t at = begin + static_cast<size_t>(differs - region.begin());
    return Corrupt(fmt::format("{} at offset {} is not what version {} writes for this layout",
                               PartAt(parts, version, at), at, version));
  }
  return {};
}

void EncodeGeometry(const StateGeometry& plan, uint32_t version, std::span<std::byte> out) {
  WriteField(out, field::kLayoutOffset, plan.layout_offset.value);
  WriteField(out, field::kLayoutSize, plan.layout_bytes.value);
  WriteField(out, field::kDescriptorsOffset, plan.descriptors_offset.value);
  WriteField(out, field::kDescriptorsSize, plan.descriptors_bytes.value);
  WriteField(out, field::kCommitSize, plan.commit_bytes.value);
  for (size_t i = 0; i < 2; ++i) {
    WriteField(out, field::kCommitOffset[i], plan.commit_offset[i].value);
    WriteField(out, field::kWeightsOffset[i], plan.weights_offset[i].value);
    WriteField(out, field::kRecordsOffset[i], plan.records_offset[i].value);
  }
  WriteField(out, field::kSpillOffset, plan.file_bytes.value);
  WriteField(out, field::kSpillSize, uint64_t{0});
  WriteField(out, field::kFileSize, plan.file_bytes.value);
  if (version == 1) return;
  WriteField(out, field::kCommitJson, plan.commit_json.value);
  WriteField(out, field::kFrozenOffset, plan.frozen_offset.value);
  WriteField(out, field::kFrozenSize, plan.frozen_bytes.value);
}

/// `layout_checksum`: of the layout text and the descriptors behind it.
void EncodeHeader(const StateHeader& header, uint64_t layout_checksum, std::span<std::byte> out) {
  const ShardLayout& layout = header.layout;
  const uint32_t version = FormatVersionOf(layout);
  WriteField(out, field::kMagic, kHeaderMagic);
  WriteField(out, field::kVersion, version);
  // Version 1 has one dtype of weights for all tiles; an fp32 weight is the master.
  uint64_t flags = header.geometry.slots == 2 ? kFlagTwoSlots : 0;
  if (header.geometry.guards) flags |= kFlagGuards;
  if (version == 1) {
    const Encoding weight = layout.model.groups.front().planes.weight().encoding;
    WriteField(out, field::kDType, static_cast<uint32_t>(weight));
    if (weight != Encoding::kFloat32) flags |= kFlagSplitMaster;
  }
  WriteField(out, field::kUuid, header.uuid);
  WriteField(out, field::kFlags, flags);
  WriteField(out, field::kWorldSize, layout.world_size);
  WriteField(out, field::kRank, layout.rank);
  WriteField(out, field::kPaths, header.paths);
  WriteField(out, field::kPath, header.path);
  WriteField(out, field::kAlignment, kStateAlignment.value);
  WriteField(out, field::kMaxTile, layout.tile_elements);
  WriteField(out, field::kParameters, layout.model.parameters);
  WriteField(out, field::kTiles, uint64_t{layout.tiles.size()});
  EncodeGeometry(header.geometry, version, out);
  WriteField(out, field::kLayoutChecksum, layout_checksum);
  WriteField(out, field::kChecksum, Checksum(out.first(field::kChecksum.offset)));
}

/// The layout of a head with these parts.
Result<ShardLayout> LayoutFrom(std::span<const std::byte> header, std::span<const std::byte> text,
                               std::span<const std::byte> descriptors) {
  const uint32_t version = ReadField(header, field::kVersion);
  const uint64_t tile_elements = ReadField(header, field::kMaxTile);
  if (tile_elements == 0 || tile_elements % kBlockElements != 0 || tile_elements > kMaxElements) {
    return Corrupt(fmt::format("the largest tile has {} elements", tile_elements));
  }
  std::optional<Planes> v1_planes;
  if (version == 1) {
    PENSTOCK_ASSIGN(v1_planes,
                    V1PlanesOf(descriptors, static_cast<DType>(ReadField(header, field::kDType))));
  }
  PENSTOCK_ASSIGN(
      ModelLayout model,
      ModelFromJson(std::string(reinterpret_cast<const char*>(text.data()), text.size()), version,
                    v1_planes, ReadField(header, field::kParameters)));
  const uint32_t world_size = ReadField(header, field::kWorldSize);
  const uint32_t rank = ReadField(header, field::kRank);
  const uint64_t tiles = ReadField(header, field::kTiles);
  // Checked before they are made: there may be far more than the file has bytes.
  const uint64_t made = CountTiles(model, tile_elements, world_size, rank);
  if (made != tiles) {
    return Corrupt(fmt::format("the header names {} tiles where the layout has {}", tiles, made));
  }
  return MakeShard(std::move(model), tile_elements, world_size, rank);
}

}  // namespace

uint32_t FormatVersionOf(const ShardLayout& layout) {
  return layout.world_size == 1 && HasV1Planes(layout.model) ? 1 : 2;
}

std::vector<double> PathShares(const ShardLayout& layout, const std::vector<TilePlace>& tiles,
                               size_t paths) {
  std::vector<double> shares(paths, 0);
  const auto all = static_cast<double>((layout.weight_bytes() + layout.record_bytes()).value);
  for (const TileId tile : layout.Tiles()) {
    const Bytes size = layout.WeightBytes(tile) + layout.RecordBytes(tile);
    shares[tiles[Index(tile)].path] += static_cast<double>(size.value) / all;
  }
  return shares;
}

FileOffset PartOffset(const StateGeometry& geometry, const TilePlace& place, Part part, int slot) {
  if (part == Part::kWeight && place.frozen) return geometry.frozen_offset + place.weight;
  return part == Part::kWeight ? geometry.weights_offset[slot] + place.weight
                               : geometry.records_offset[slot] + place.record;
}

StateHeader PlanState(const Uuid& uuid, const ShardLayout& layout, const StateShape& shape,
                      uint32_t path) {
  PENSTOCK_CHECK(path < shape.paths && shape.paths <= kMaxPaths &&
                 (shape.slots == 1 || shape.slots == 2) &&
                 (shape.commit_json == kCommitJsonLimit || FormatVersionOf(layout) > 1));
  TilePlan tiles = PlanTiles(layout, shape);
  StateHeader header{.uuid = uuid,
                     .paths = shape.paths,
                     .path = path,
                     .geometry = {.slots = shape.slots, .guards = shape.guards},
                     .layout = layout,
                     .tiles = std::move(tiles.tiles)};
  StateGeometry& plan = header.geometry;
  FileOffset next{kHeaderBytes.value};
  const auto place = [&](Bytes size) {
    const FileOffset at = next;
    next = next + AlignUp(size, kStateAlignment);
    return at;
  };
  const auto guard = [&] {
    if (shape.guards) next = next + kStateAlignment;
  };
  plan.layout_bytes = Bytes{ModelToJson(layout.model, FormatVersionOf(layout)).size()};
  plan.layout_offset = place(plan.layout_bytes);
  plan.descriptors_bytes = kDescriptorBytes * layout.tiles.size();
  plan.descriptors_offset = place(plan.descriptors_bytes);
  plan.commit_json = shape.commit_json;
  plan.commit_bytes = AlignUp(
      CommitBytes(FormatVersionOf(layout), layout.tiles.size(), plan.commit_json), kStateAlignment);
  for (FileOffset& offset : plan.commit_offset) {
    offset = place(plan.commit_bytes);
    guard();
  }
  const TilePlan::Regions& regions = tiles.paths[path];
  for (int slot = 0; slot < 2; ++slot) {
    if (slot < shape.slots) {
      plan.weights_offset[slot] = place(regions.weights);
      plan.records_offset[slot] = place(regions.records);
      guard();
    } else {
      plan.weights_offset[slot] = plan.weights_offset[0];
      plan.records_offset[slot] = plan.records_offset[0];
    }
  }
  plan.frozen_offset = place(regions.frozen);
  plan.frozen_bytes = regions.frozen;
  plan.file_bytes = Bytes{next.value};
  return header;
}

StateHeader HeaderOfPath(const StateHeader& header, uint32_t path) {
  StateShape shape{.slots = header.geometry.slots,
                   .guards = header.geometry.guards,
                   .commit_json = header.geometry.commit_json,
                   .paths = header.paths};
  for (size_t i = 0; shape.paths > 1 && i < header.tiles.size(); ++i) {
    shape.path_of_tile.push_back(header.tiles[i].path);
  }
  return PlanState(header.uuid, header.layout, shape, path);
}

Bytes StateFileBytes(const ShardLayout& layout, int slots, size_t paths) {
  StateShape shape{.slots = slots, .paths = static_cast<uint32_t>(paths)};
  for (size_t i = 0; paths > 1 && i < layout.tiles.size(); ++i) {
    shape.path_of_tile.push_back(static_cast<uint16_t>(i % paths));
  }
  Bytes files;
  for (uint32_t path = 0; path < shape.paths; ++path) {
    files += PlanState({}, layout, shape, path).geometry.whole_bytes();
  }
  return files;
}

std::vector<std::byte> EncodeHead(const StateHeader& header) {
  const StateGeometry& plan = header.geometry;
  const ShardLayout& layout = header.layout;
  const uint32_t version = FormatVersionOf(layout);
  std::vector<std::byte> head(plan.commit_offset[0].value);
  const std::span<std::byte> out(head);

  const std::string text = ModelToJson(layout.model, version);
  PENSTOCK_CHECK(text.size() == plan.layout_bytes.value);
  std::memcpy(head.data() + plan.layout_offset.value, text.data(), text.size());
  const auto descriptors = out.subspan(plan.descriptors_offset.value, plan.descriptors_bytes.value);
  for (const TileId tile : layout.Tiles()) {
    EncodeDescriptor(
        layout, tile, header.tiles[Index(tile)], version,
        descriptors.subspan(Index(tile) * kDescriptorBytes.value, kDescriptorBytes.value));
  }
  std::vector<std::byte> hashed(
      head.begin() + static_cast<ptrdiff_t>(plan.layout_offset.value),
      head.begin() + static_cast<ptrdiff_t>(plan.layout_offset.value + text.size()));
  hashed.insert(hashed.end(), descriptors.begin(), descriptors.end());

  EncodeHeader(header, Checksum(hashed), out.first(kHeaderBytes.value));
  return head;
}

std::vector<std::byte> SecondHead(std::vector<std::byte> head) {
  std::rotate(head.begin(), head.begin() + static_cast<ptrdiff_t>(kHeaderBytes.value), head.end());
  return head;
}

std::vector<std::byte> FirstHead(std::vector<std::byte> second) {
  std::rotate(second.begin(), second.end() - static_cast<ptrdiff_t>(kHeaderBytes.value),
              second.end());
  return second;
}

std::vector<std::byte> EncodeUnfinishedMark(const Uuid& uuid) {
  std::vector<std::byte> mark(kHeaderBytes.value);
  const std::span<std::byte> out(mark);
  WriteField(out, field::kMagic, kUnfinishedMagic);
  WriteField(out, field::kUuid, uuid);
  WriteField(out, field::kChecksum, Checksum(out.first(field::kChecksum.offset)));
  return mark;
}

Result<Bytes> HeadBytes(std::span<const std::byte> bytes) {
  PENSTOCK_CHECK(bytes.size() >= kHeaderBytes.value);
  PENSTOCK_ASSIGN(const HeadParts parts, PartsOf(bytes.first(kHeaderBytes.value)));
  return parts.end;
}

Result<Uuid> UuidOf(std::span<const std::byte> bytes) {
  PENSTOCK_CHECK(bytes.size() >= kHeaderBytes.value);
  const Status header = CheckHeader(bytes);
  if (!header.ok() && header.error().code != ErrorCode::kNotFound) return header.error();
  return ReadField(bytes, field::kUuid);
}

Result<StateHeader> DecodeHead(std::span<const std::byte> bytes) {
  if (bytes.size() < kHeaderBytes.value) return Corrupt("the head ends inside the header");
  PENSTOCK_ASSIGN(const HeadParts parts, PartsOf(bytes.first(kHeaderBytes.value)));
  if (bytes.size() < parts.end.value) return Corrupt("the head ends before its descriptors do");
  const auto text = bytes.subspan(kHeaderBytes.value, parts.layout.value);
  const auto tiles = bytes.subspan(parts.descriptors_offset.value, parts.descriptors.value);
  std::vector<std::byte> hashed(text.begin(), text.end());
  hashed.insert(hashed.end(), tiles.begin(), tiles.end());
  if (Checksum(hashed) != ReadField(bytes, field::kLayoutChecksum)) {
    return Corrupt(fmt::format("the checksum of layout and descriptors at offset {} does not hold",
                               kHeaderBytes.value));
  }
  const uint64_t flags = ReadField(bytes, field::kFlags);
  StateShape shape{.slots = (flags & kFlagTwoSlots) != 0 ? 2 : 1,
                   .guards = (flags & kFlagGuards) != 0,
                   .paths = ReadField(bytes, field::kPaths)};
  const uint32_t version = ReadField(bytes, field::kVersion);
  PENSTOCK_ASSIGN(const ShardLayout layout, LayoutFrom(bytes, text, tiles));
  PENSTOCK_ASSIGN(shape.path_of_tile, PathsOf(tiles, version, shape.paths));
  if (shape.paths == 1) shape.path_of_tile.clear();
  if (version > 1) {
    shape.commit_json = Bytes{ReadField(bytes, field::kCommitJson)};
    if (shape.commit_json < kCommitJsonLimit || shape.commit_json > kMaxCommitJson ||
        shape.commit_json.value % kHeaderBytes.value != 0) {
      return Corrupt(fmt::format("{} at offset {} cannot be {}", field::kCommitJson.name,
                                 field::kCommitJson.offset, shape.commit_json.value));
    }
  }
  StateHeader header =
      PlanState(ReadField(bytes, field::kUuid), layout, shape, ReadField(bytes, field::kPath));
  PENSTOCK_TRY(CheckAsWritten(parts, bytes, EncodeHead(header)));
  return header;
}

}  // namespace penstock::offload
