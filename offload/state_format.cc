#include "offload/state_format.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <optional>
#include <utility>

#include "base/check.h"
#include "offload/byte_fields.h"
#include "offload/layout_text.h"
#include "offload/tile_descriptors.h"

namespace penstock::offload {
namespace {

constexpr std::array<char, 8> kHeaderMagic = {'P', 'E', 'N', 'S', 'T', 'O', 'C', 'K'};
constexpr std::array<char, 8> kUnfinishedMagic = {'P', 'S', 'M', 'A', 'K', 'I', 'N', 'G'};
constexpr size_t kUuidAt = 16;
constexpr uint64_t kFlagTwoSlots = 1;
constexpr uint64_t kFlagSplitMaster = 2;
constexpr size_t kLayoutChecksumAt = 200;
constexpr size_t kV1End = 208;  ///< where the fields of version 1 end
constexpr size_t kHeaderChecksumAt = 4088;

bool BeginsWith(std::span<const std::byte> bytes, const std::array<char, 8>& magic) {
  return std::memcmp(bytes.data(), magic.data(), magic.size()) == 0;
}

/// Where each field of the header begins, for messages.
struct HeaderField {
  size_t offset;
  const char* name;
};
constexpr HeaderField kHeaderFields[] = {
    {0, "the magic"},
    {8, "the format version"},
    {12, "the dtype"},
    {kUuidAt, "the UUID"},
    {32, "the feature flags"},
    {40, "the world size"},
    {44, "the rank"},
    {48, "the number of paths"},
    {52, "the index of the path"},
    {56, "the alignment"},
    {64, "the largest tile"},
    {72, "the number of parameters"},
    {80, "the number of tiles"},
    {88, "the offset of the layout"},
    {96, "the size of the layout"},
    {104, "the offset of the descriptors"},
    {112, "the size of the descriptors"},
    {120, "the offset of commit place 0"},
    {128, "the offset of commit place 1"},
    {136, "the size of a commit place"},
    {144, "the offset of slot 0's weights"},
    {152, "the offset of slot 1's weights"},
    {160, "the offset of slot 0's records"},
    {168, "the offset of slot 1's records"},
    {176, "the offset of the spill"},
    {184, "the size of the spill"},
    {192, "the file size"},
    {kLayoutChecksumAt, "the checksum of layout and descriptors"},
    {208, "the room for a commit's JSON text"},
    {216, "the offset of the frozen weights"},
    {224, "the size of the frozen weights"},
    {232, "a reserved byte"},
    {kHeaderChecksumAt, "the checksum of the header"}};

/// The file may be whole, but it was written by another version of the program.
Error Unknown(const std::string& what) {
  return MakeError(ErrorCode::kUnavailable,
                   "it has {}, which this version of penstock does not read (format {})", what,
                   kStateFormatVersion);
}

/// Where the tiles of all paths lie, and behind them what each path's regions take.
struct TilePlan {
  std::vector<TilePlace> tiles;
  struct Regions {
    Bytes weights;  ///< of a slot
    Bytes records;  ///< of a slot
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

Uuid UuidAt(std::span<const std::byte> header) {
  Uuid uuid{};
  std::memcpy(uuid.data(), header.data() + kUuidAt, uuid.size());
  return uuid;
}

Status CheckHeader(std::span<const std::byte> bytes) {
  const bool unfinished = BeginsWith(bytes, kUnfinishedMagic);
  if (!unfinished && !BeginsWith(bytes, kHeaderMagic)) {
    return Corrupt("no magic at offset 0: not a penstock state file, or a damaged one");
  }
  // Of any version: damage is not taken for another one.
  if (Checksum(bytes.first(kHeaderChecksumAt)) != Get<uint64_t>(bytes, kHeaderChecksumAt)) {
    return Corrupt("the checksum of the header at offset 0 does not hold");
  }
  if (unfinished) {
    return MakeError(ErrorCode::kNotFound,
                     "it was never finished: the run ended before its first commit");
  }
  const auto version = Get<uint32_t>(bytes, 8);
  if (version == 0 || version > kStateFormatVersion) {
    return Unknown(fmt::format("format version {}", version));
  }
  const auto flags = Get<uint64_t>(bytes, 32);
  const auto dtype = Get<uint32_t>(bytes, 12);
  const bool split = (flags & kFlagSplitMaster) != 0;
  const bool known = (flags & ~(kFlagTwoSlots | kFlagSplitMaster)) == 0 &&
                     dtype == static_cast<uint32_t>(split ? DType::kBFloat16 : DType::kFloat32);
  if (version == 1 ? !known : (flags & ~kFlagTwoSlots) != 0) {
    return Unknown("feature flags or a weight dtype");
  }
  const auto world_size = Get<uint32_t>(bytes, 40);
  if (world_size == 0 || world_size > kMostRanks || Get<uint32_t>(bytes, 44) >= world_size) {
    return Corrupt("the world size and the rank do not hold");
  }
  if (version == 1 && world_size != 1) return Unknown("several ranks");
  const auto paths = Get<uint32_t>(bytes, 48);
  if (paths == 0 || paths > kMostPaths || Get<uint32_t>(bytes, 52) >= paths) {
    return Corrupt("the number of paths and the index of this one do not hold");
  }
  return {};
}

/// Where the parts of a head lie that its header says the size of: behind each other.
struct HeadParts {
  Bytes layout;       ///< size of the text
  Bytes descriptors;  ///< size of all of them
  Bytes descriptors_offset;
  Bytes end;  ///< where commit place 0 begins
};

Result<HeadParts> PartsOf(std::span<const std::byte> header) {
  PENSTOCK_TRY(CheckHeader(header));
  HeadParts parts{.layout = Bytes{Get<uint64_t>(header, 96)}};
  const auto tiles = Get<uint64_t>(header, 80);
  const bool some = tiles > 0 || Get<uint32_t>(header, 8) > 1;
  if (!some || tiles > kMostTiles || parts.layout > kMostLayoutBytes) {
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
  if (version == 1 && offset >= kV1End && offset < kHeaderChecksumAt) return "a reserved byte";
  if (offset < kHeaderBytes.value) {
    return std::prev(std::ranges::upper_bound(kHeaderFields, offset, {}, &HeaderField::offset))
        ->name;
  }
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
  } regions[] = {{0, kLayoutChecksumAt},  // with the sizes of the next two
                 {kHeaderBytes.value, parts.layout.value},
                 {parts.descriptors_offset.value, parts.descriptors.value},
                 {kLayoutChecksumAt, kHeaderBytes.value - kLayoutChecksumAt}};
  for (const auto& [begin, size] : regions) {
    const auto region = found.subspan(begin, size);
    const auto differs = std::ranges::mismatch(region, expected.subspan(begin, size)).in1;
    if (differs == region.end()) continue;
    const size_t at = begin + static_cast<size_t>(differs - region.begin());
    return Corrupt(fmt::format("{} at offset {} is not what version {} writes for this layout",
                               PartAt(parts, Get<uint32_t>(found, 8), at), at,
                               Get<uint32_t>(found, 8)));
  }
  return {};
}

/// The layout of a head with these parts.
Result<ShardLayout> LayoutFrom(std::span<const std::byte> header, std::span<const std::byte> text,
                               std::span<const std::byte> descriptors) {
  const auto version = Get<uint32_t>(header, 8);
  const auto tile_elements = Get<uint64_t>(header, 64);
  if (tile_elements == 0 || tile_elements % kBlockElements != 0 || tile_elements > kMostElements) {
    return Corrupt(fmt::format("the largest tile has {} elements", tile_elements));
  }
  std::optional<Planes> v1_planes;
  if (version == 1) {
    PENSTOCK_ASSIGN(v1_planes,
                    V1PlanesOf(descriptors, static_cast<DType>(Get<uint32_t>(header, 12))));
  }
  PENSTOCK_ASSIGN(
      ModelLayout model,
      ModelFromJson(std::string(reinterpret_cast<const char*>(text.data()), text.size()), version,
                    v1_planes, Get<uint64_t>(header, 72)));
  const auto world_size = Get<uint32_t>(header, 40);
  const auto rank = Get<uint32_t>(header, 44);
  const auto tiles = Get<uint64_t>(header, 80);
  // Before they are made: there may be far more than the file has bytes.
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
  PENSTOCK_CHECK(path < shape.paths && shape.paths <= kMostPaths &&
                 (shape.slots == 1 || shape.slots == 2) &&
                 (shape.commit_json == kCommitJsonLimit || FormatVersionOf(layout) > 1));
  TilePlan tiles = PlanTiles(layout, shape);
  StateHeader header{.uuid = uuid,
                     .paths = shape.paths,
                     .path = path,
                     .geometry = {.slots = shape.slots},
                     .layout = layout,
                     .tiles = std::move(tiles.tiles)};
  StateGeometry& plan = header.geometry;
  FileOffset next{kHeaderBytes.value};
  const auto place = [&](Bytes size) {
    const FileOffset at = next;
    next = next + AlignUp(size, kStateAlignment);
    return at;
  };
  plan.layout_bytes = Bytes{ModelToJson(layout.model, FormatVersionOf(layout)).size()};
  plan.layout_offset = place(plan.layout_bytes);
  plan.descriptors_bytes = kDescriptorBytes * layout.tiles.size();
  plan.descriptors_offset = place(plan.descriptors_bytes);
  plan.commit_json = shape.commit_json;
  plan.commit_bytes = AlignUp(
      CommitBytes(FormatVersionOf(layout), layout.tiles.size(), plan.commit_json), kStateAlignment);
  for (FileOffset& offset : plan.commit_offset) offset = place(plan.commit_bytes);
  const TilePlan::Regions& regions = tiles.paths[path];
  for (int slot = 0; slot < 2; ++slot) {
    if (slot < shape.slots) {
      plan.weights_offset[slot] = place(regions.weights);
      plan.records_offset[slot] = place(regions.records);
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

  std::memcpy(head.data(), kHeaderMagic.data(), kHeaderMagic.size());
  Put<uint32_t>(out, 8, version);
  // Version 1 has one weight for all tiles, which is the master where it is fp32.
  uint64_t flags = plan.slots == 2 ? kFlagTwoSlots : 0;
  if (version == 1) {
    const Encoding weight = layout.model.groups.front().planes.weight().encoding;
    Put<uint32_t>(out, 12, static_cast<uint32_t>(weight));
    if (weight != Encoding::kFloat32) flags |= kFlagSplitMaster;
  }
  std::memcpy(head.data() + kUuidAt, header.uuid.data(), header.uuid.size());
  Put<uint64_t>(out, 32, flags);
  Put<uint32_t>(out, 40, layout.world_size);
  Put<uint32_t>(out, 44, layout.rank);
  Put<uint32_t>(out, 48, header.paths);
  Put<uint32_t>(out, 52, header.path);
  const uint64_t fields[] = {kStateAlignment.value,
                             layout.tile_elements,
                             layout.model.parameters,
                             layout.tiles.size(),
                             plan.layout_offset.value,
                             plan.layout_bytes.value,
                             plan.descriptors_offset.value,
                             plan.descriptors_bytes.value,
                             plan.commit_offset[0].value,
                             plan.commit_offset[1].value,
                             plan.commit_bytes.value,
                             plan.weights_offset[0].value,
                             plan.weights_offset[1].value,
                             plan.records_offset[0].value,
                             plan.records_offset[1].value,
                             plan.file_bytes.value,
                             0,  // spill: no bytes
                             plan.file_bytes.value,
                             Checksum(hashed)};
  for (size_t i = 0; i < std::size(fields); ++i) Put<uint64_t>(out, 56 + 8 * i, fields[i]);
  if (version > 1) {
    Put<uint64_t>(out, 208, plan.commit_json.value);
    Put<uint64_t>(out, 216, plan.frozen_offset.value);
    Put<uint64_t>(out, 224, plan.frozen_bytes.value);
  }
  Put<uint64_t>(out, kHeaderChecksumAt, Checksum(std::span(head).first(kHeaderChecksumAt)));
  return head;
}

std::vector<std::byte> EncodeUnfinishedMark(const Uuid& uuid) {
  std::vector<std::byte> mark(kHeaderBytes.value);
  std::memcpy(mark.data(), kUnfinishedMagic.data(), kUnfinishedMagic.size());
  std::memcpy(mark.data() + kUuidAt, uuid.data(), uuid.size());
  Put<uint64_t>(std::span(mark), kHeaderChecksumAt,
                Checksum(std::span(mark).first(kHeaderChecksumAt)));
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
  return UuidAt(bytes);
}

Result<StateHeader> DecodeHead(std::span<const std::byte> bytes) {
  if (bytes.size() < kHeaderBytes.value) return Corrupt("the head ends inside the header");
  PENSTOCK_ASSIGN(const HeadParts parts, PartsOf(bytes.first(kHeaderBytes.value)));
  if (bytes.size() < parts.end.value) return Corrupt("the head ends before its descriptors do");
  const auto text = bytes.subspan(kHeaderBytes.value, parts.layout.value);
  const auto tiles = bytes.subspan(parts.descriptors_offset.value, parts.descriptors.value);
  std::vector<std::byte> hashed(text.begin(), text.end());
  hashed.insert(hashed.end(), tiles.begin(), tiles.end());
  if (Checksum(hashed) != Get<uint64_t>(bytes, kLayoutChecksumAt)) {
    return Corrupt(fmt::format("the checksum of layout and descriptors at offset {} does not hold",
                               kHeaderBytes.value));
  }
  StateShape shape{.slots = (Get<uint64_t>(bytes, 32) & kFlagTwoSlots) != 0 ? 2 : 1,
                   .paths = Get<uint32_t>(bytes, 48)};
  PENSTOCK_ASSIGN(const ShardLayout layout, LayoutFrom(bytes, text, tiles));
  PENSTOCK_ASSIGN(shape.path_of_tile, PathsOf(tiles, Get<uint32_t>(bytes, 8), shape.paths));
  if (shape.paths == 1) shape.path_of_tile.clear();
  if (Get<uint32_t>(bytes, 8) > 1) {
    shape.commit_json = Bytes{Get<uint64_t>(bytes, 208)};
    if (shape.commit_json < kCommitJsonLimit || shape.commit_json > kMostCommitJson ||
        shape.commit_json.value % kHeaderBytes.value != 0) {
      return Corrupt(fmt::format("{} at offset 208 cannot be {}", PartAt(parts, 2, 208),
                                 shape.commit_json.value));
    }
  }
  StateHeader header = PlanState(UuidAt(bytes), layout, shape, Get<uint32_t>(bytes, 52));
  PENSTOCK_TRY(CheckAsWritten(parts, bytes, EncodeHead(header)));
  return header;
}

}  // namespace penstock::offload
