#include "offload/state_format.h"

#include <array>
#include <cstring>

#include "base/check.h"
#include "offload/byte_fields.h"
#include "offload/commit_record.h"
#include "offload/layout_format.h"

namespace penstock::offload {
namespace {

constexpr std::array<char, 8> kHeaderMagic = {'P', 'E', 'N', 'S', 'T', 'O', 'C', 'K'};
constexpr uint64_t kFlagTwoSlots = 1;
constexpr uint64_t kFlagSplitMaster = 2;
constexpr size_t kHeaderChecksumAt = 4088;

/// The file may be whole, but it was written by another version of the program.
Error Unknown(const std::string& what) {
  return MakeError(ErrorCode::kUnavailable,
                   "it has {}, which this version of penstock does not read (format {})", what,
                   kStateFormatVersion);
}

std::vector<TilePlace> PlanTiles(const Layout& layout, const StateShape& shape) {
  PENSTOCK_CHECK(shape.path_of_tile.size() == (shape.paths == 1 ? 0 : layout.tiles.size()));
  std::vector<TilePlace> places;
  std::vector<TilePlace> next(shape.paths);
  for (size_t i = 0; i < layout.tiles.size(); ++i) {
    const uint16_t path = shape.paths == 1 ? 0 : shape.path_of_tile[i];
    PENSTOCK_CHECK(path < shape.paths);
    next[path].path = path;
    places.push_back(next[path]);
    next[path].weight += layout.WeightBytes(layout.tiles[i].elements);
    next[path].record += layout.RecordBytes(layout.tiles[i].elements);
  }
  return places;
}

/// Elements, padding included, of the tiles that lie on a path.
uint64_t ElementsOn(const StateHeader& header, uint32_t path) {
  uint64_t elements = 0;
  for (size_t i = 0; i < header.tiles.size(); ++i) {
    if (header.tiles[i].path == path) elements += header.layout.tiles[i].elements;
  }
  return elements;
}

/// Where everything lies, from the header's own fields.
StateGeometry ReadGeometry(std::span<const std::byte> bytes) {
  const auto offset = [&](size_t at) { return FileOffset{Get<uint64_t>(bytes, at)}; };
  const auto size = [&](size_t at) { return Bytes{Get<uint64_t>(bytes, at)}; };
  return {.alignment = size(56),
          .slots = (Get<uint64_t>(bytes, 32) & kFlagTwoSlots) != 0 ? 2 : 1,
          .layout_offset = offset(88),
          .layout_bytes = size(96),
          .descriptors_offset = offset(104),
          .descriptors_bytes = size(112),
          .commit_offset = {offset(120), offset(128)},
          .commit_bytes = size(136),
          .weights_offset = {offset(144), offset(152)},
          .records_offset = {offset(160), offset(168)},
          .file_bytes = size(192)};
}

bool Inside(FileOffset offset, Bytes size, Bytes whole) {
  return offset.value <= whole.value && size.value <= whole.value - offset.value;
}

/// Every region lies in the file, and so does every tile of its path.
Status CheckRegions(const StateHeader& header) {
  const StateGeometry& plan = header.geometry;
  const Layout& layout = header.layout;
  bool inside = plan.alignment.value > 0 && plan.alignment.value % kHeaderBytes.value == 0;
  for (int i = 0; i < 2; ++i) {
    inside = inside && Inside(plan.commit_offset[i], plan.commit_bytes, plan.file_bytes);
    for (size_t tile = 0; inside && tile < layout.tiles.size(); ++tile) {
      const uint64_t elements = layout.tiles[tile].elements;
      const TilePlace& at = header.tiles[tile];
      if (at.path != header.path) continue;
      inside =
          at.weight <= plan.file_bytes && at.record <= plan.file_bytes &&
          Inside(plan.weights_offset[i] + at.weight, layout.WeightBytes(elements),
                 plan.file_bytes) &&
          Inside(plan.records_offset[i] + at.record, layout.RecordBytes(elements), plan.file_bytes);
    }
  }
  if (inside) return {};
  return Corrupt("a region that the header names reaches beyond the file");
}

Status CheckHeader(std::span<const std::byte> bytes) {
  if (std::memcmp(bytes.data(), kHeaderMagic.data(), kHeaderMagic.size()) != 0) {
    return Corrupt(
        "no magic at offset 0: not a penstock state file, or one whose creation was never "
        "finished");
  }
  // Of any version: damage is not taken for another one.
  if (Checksum(bytes.first(kHeaderChecksumAt)) != Get<uint64_t>(bytes, kHeaderChecksumAt)) {
    return Corrupt("the checksum of the header at offset 0 does not hold");
  }
  if (const auto version = Get<uint32_t>(bytes, 8); version != kStateFormatVersion) {
    return Unknown(fmt::format("format version {}", version));
  }
  const auto flags = Get<uint64_t>(bytes, 32);
  const auto dtype = Get<uint32_t>(bytes, 12);
  const bool split = (flags & kFlagSplitMaster) != 0;
  if ((flags & ~(kFlagTwoSlots | kFlagSplitMaster)) != 0 ||
      dtype != static_cast<uint32_t>(split ? DType::kBFloat16 : DType::kFloat32)) {
    return Unknown("feature flags or a weight dtype");
  }
  if (Get<uint32_t>(bytes, 40) != 1) return Unknown("several ranks");
  const auto paths = Get<uint32_t>(bytes, 48);
  if (paths == 0 || paths > kMostPaths || Get<uint32_t>(bytes, 52) >= paths) {
    return Corrupt("the number of paths and the index of this one do not hold");
  }
  return {};
}

}  // namespace

std::vector<double> PathShares(const Layout& layout, const std::vector<TilePlace>& tiles,
                               size_t paths) {
  std::vector<double> shares(paths, 0);
  const auto all = static_cast<double>(layout.elements());
  for (size_t i = 0; i < tiles.size(); ++i) {
    shares[tiles[i].path] += static_cast<double>(layout.tiles[i].elements) / all;
  }
  return shares;
}

FileOffset PartOffset(const StateGeometry& geometry, const TilePlace& place, Part part, int slot) {
  return part == Part::kWeight ? geometry.weights_offset[slot] + place.weight
                               : geometry.records_offset[slot] + place.record;
}

StateHeader PlanState(const Uuid& uuid, const Layout& layout, const StateShape& shape,
                      uint32_t path) {
  const Bytes alignment = shape.alignment;
  PENSTOCK_CHECK(alignment.value % kHeaderBytes.value == 0 && path < shape.paths &&
                 shape.paths <= kMostPaths && (shape.slots == 1 || shape.slots == 2));
  StateHeader header{.uuid = uuid,
                     .paths = shape.paths,
                     .path = path,
                     .geometry = {.alignment = alignment, .slots = shape.slots},
                     .layout = layout,
                     .tiles = PlanTiles(layout, shape)};
  StateGeometry& plan = header.geometry;
  FileOffset next{alignment.value};
  const auto place = [&](Bytes size) {
    const FileOffset at = next;
    next = next + AlignUp(size, alignment);
    return at;
  };
  plan.layout_bytes = Bytes{LayoutToJson(layout).size()};
  plan.layout_offset = place(plan.layout_bytes);
  plan.descriptors_bytes = kDescriptorBytes * layout.tiles.size();
  plan.descriptors_offset = place(plan.descriptors_bytes);
  plan.commit_bytes = AlignUp(CommitBytes(layout.tiles.size(), kCommitJsonLimit), alignment);
  for (FileOffset& offset : plan.commit_offset) offset = place(plan.commit_bytes);
  const uint64_t elements = ElementsOn(header, path);
  for (int slot = 0; slot < 2; ++slot) {
    if (slot < shape.slots) {
      plan.weights_offset[slot] = place(layout.WeightBytes(elements));
      plan.records_offset[slot] = place(layout.RecordBytes(elements));
    } else {
      plan.weights_offset[slot] = plan.weights_offset[0];
      plan.records_offset[slot] = plan.records_offset[0];
    }
  }
  plan.file_bytes = Bytes{next.value};
  return header;
}

std::vector<std::byte> EncodeHead(const StateHeader& header) {
  const StateGeometry& plan = header.geometry;
  const Layout& layout = header.layout;
  std::vector<std::byte> head(plan.commit_offset[0].value);
  const std::span<std::byte> out(head);

  const std::string text = LayoutToJson(layout);
  PENSTOCK_CHECK(text.size() == plan.layout_bytes.value);
  std::memcpy(head.data() + plan.layout_offset.value, text.data(), text.size());
  const auto descriptors = out.subspan(plan.descriptors_offset.value, plan.descriptors_bytes.value);
  for (size_t i = 0; i < layout.tiles.size(); ++i) {
    EncodeDescriptor(layout, layout.tiles[i], header.tiles[i],
                     descriptors.subspan(i * kDescriptorBytes.value, kDescriptorBytes.value));
  }
  std::vector<std::byte> hashed(
      head.begin() + static_cast<ptrdiff_t>(plan.layout_offset.value),
      head.begin() + static_cast<ptrdiff_t>(plan.layout_offset.value + text.size()));
  hashed.insert(hashed.end(), descriptors.begin(), descriptors.end());

  std::memcpy(head.data(), kHeaderMagic.data(), kHeaderMagic.size());
  Put<uint32_t>(out, 8, kStateFormatVersion);
  Put<uint32_t>(out, 12, static_cast<uint32_t>(layout.dtype));
  std::memcpy(head.data() + 16, header.uuid.data(), header.uuid.size());
  Put<uint64_t>(out, 32,
                (plan.slots == 2 ? kFlagTwoSlots : 0) |
                    (layout.dtype != DType::kFloat32 ? kFlagSplitMaster : 0));
  Put<uint32_t>(out, 40, 1);  // world size
  Put<uint32_t>(out, 48, header.paths);
  Put<uint32_t>(out, 52, header.path);
  const uint64_t fields[] = {plan.alignment.value,
                             layout.tile_elements,
                             layout.parameters,
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
  Put<uint64_t>(out, kHeaderChecksumAt, Checksum(std::span(head).first(kHeaderChecksumAt)));
  return head;
}

Result<Bytes> HeadBytes(std::span<const std::byte> bytes) {
  PENSTOCK_CHECK(bytes.size() >= kHeaderBytes.value);
  PENSTOCK_TRY(CheckHeader(bytes));
  return Bytes{Get<uint64_t>(bytes, 120)};
}

Result<Uuid> UuidOf(std::span<const std::byte> bytes) {
  PENSTOCK_CHECK(bytes.size() >= kHeaderBytes.value);
  PENSTOCK_TRY(CheckHeader(bytes));
  Uuid uuid{};
  std::memcpy(uuid.data(), bytes.data() + 16, uuid.size());
  return uuid;
}

Result<StateHeader> DecodeHead(std::span<const std::byte> bytes) {
  PENSTOCK_TRY(CheckHeader(bytes));
  StateHeader header{.paths = Get<uint32_t>(bytes, 48),
                     .path = Get<uint32_t>(bytes, 52),
                     .geometry = ReadGeometry(bytes)};
  std::memcpy(header.uuid.data(), bytes.data() + 16, header.uuid.size());
  Layout& layout = header.layout;
  layout.dtype = static_cast<DType>(Get<uint32_t>(bytes, 12));
  layout.tile_elements = Get<uint64_t>(bytes, 64);
  layout.parameters = Get<uint64_t>(bytes, 72);
  const StateGeometry& plan = header.geometry;
  const Bytes head{bytes.size()};
  if (!Inside(plan.layout_offset, plan.layout_bytes, head) ||
      !Inside(plan.descriptors_offset, plan.descriptors_bytes, head) ||
      plan.descriptors_bytes.value % kDescriptorBytes.value != 0) {
    return Corrupt("the layout or the descriptors reach beyond the head of the file");
  }
  const auto text = bytes.subspan(plan.layout_offset.value, plan.layout_bytes.value);
  const auto tiles = bytes.subspan(plan.descriptors_offset.value, plan.descriptors_bytes.value);
  std::vector<std::byte> hashed(text.begin(), text.end());
  hashed.insert(hashed.end(), tiles.begin(), tiles.end());
  if (Checksum(hashed) != Get<uint64_t>(bytes, 200)) {
    return Corrupt(fmt::format("the checksum of layout and descriptors at offset {} does not hold",
                               plan.layout_offset.value));
  }
  PENSTOCK_TRY(ModulesFromJson(std::string(reinterpret_cast<const char*>(text.data()), text.size()),
                               layout));
  PENSTOCK_TRY(TilesFromDescriptors(tiles, header.paths, layout, header.tiles));
  PENSTOCK_TRY(CheckRegions(header));
  return header;
}

}  // namespace penstock::offload
