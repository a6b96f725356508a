#include "offload/state_format.h"

#include <array>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/check.h"

namespace penstock::offload {
namespace {

using Json = nlohmann::json;

constexpr std::array<char, 8> kHeaderMagic = {'P', 'E', 'N', 'S', 'T', 'O', 'C', 'K'};
constexpr std::array<char, 8> kCommitMagic = {'P', 'S', 'C', 'O', 'M', 'M', 'I', 'T'};
constexpr uint64_t kFlagTwoSlots = 1;
constexpr uint64_t kFlagSplitMaster = 2;
constexpr size_t kHeaderChecksumAt = 4088;
constexpr size_t kCommitFixedBytes = 96;
constexpr size_t kCommitTileBytes = 32;

/// One state of a record, as descriptors name it.
struct RecordState {
  uint8_t kind;   // 1 lo, 2 exp_avg, 3 exp_avg_sq
  uint8_t dtype;  // 1 fp32, 4 int16
};
constexpr std::array<RecordState, 3> kSplitMasterStates = {{{1, 4}, {2, 1}, {3, 1}}};
constexpr std::array<RecordState, 2> kFloat32States = {{{2, 1}, {3, 1}}};

std::span<const RecordState> StatesOf(DType dtype) {
  if (dtype == DType::kFloat32) return kFloat32States;
  return kSplitMasterStates;
}

template <typename T>
void Put(std::span<std::byte> bytes, size_t at, T value) {
  PENSTOCK_CHECK(at + sizeof(T) <= bytes.size());
  std::memcpy(bytes.data() + at, &value, sizeof(T));
}

template <typename T>
T Get(std::span<const std::byte> bytes, size_t at) {
  PENSTOCK_CHECK(at + sizeof(T) <= bytes.size());
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

Error Corrupt(const std::string& what) { return MakeError(ErrorCode::kCorruption, "{}", what); }

/// The file may be whole, but it was written by another version of the program.
Error Unknown(const std::string& what) {
  return MakeError(ErrorCode::kUnavailable,
                   "it has {}, which this version of penstock does not read (format {})", what,
                   kStateFormatVersion);
}

std::string LayoutToJson(const Layout& layout) {
  Json modules = Json::array();
  for (const ModuleLayout& module : layout.modules) {
    Json tensors = Json::array();
    for (const TensorLayout& tensor : module.tensors) {
      tensors.push_back({{"name", tensor.name},
                         {"shape", tensor.shape},
                         {"group", static_cast<int>(tensor.group)},
                         {"offset", tensor.offset}});
    }
    modules.push_back(
        {{"name", module.name}, {"elements", module.elements}, {"tensors", std::move(tensors)}});
  }
  return Json{{"modules", std::move(modules)}}.dump();
}

TensorLayout TensorFromJson(const Json& json) {
  TensorLayout tensor{.name = json.at("name").get<std::string>(),
                      .shape = json.at("shape").get<std::vector<uint64_t>>(),
                      .group = static_cast<ParameterGroup>(json.at("group").get<int>()),
                      .offset = json.at("offset").get<uint64_t>(),
                      .elements = 1};
  for (uint64_t size : tensor.shape) tensor.elements *= size;
  return tensor;
}

Status ModulesFromJson(const std::string& text, Layout& layout) {
  try {
    const Json document = Json::parse(text);
    for (const Json& entry : document.at("modules")) {
      ModuleLayout module{.name = entry.at("name").get<std::string>(),
                          .elements = entry.at("elements").get<uint64_t>()};
      for (const Json& tensor : entry.at("tensors")) {
        module.tensors.push_back(TensorFromJson(tensor));
        const TensorLayout& read = module.tensors.back();
        if (read.offset > module.elements || read.elements > module.elements - read.offset) {
          return Corrupt(fmt::format("tensor {} reaches beyond its module", read.name));
        }
      }
      layout.modules.push_back(std::move(module));
    }
  } catch (const Json::exception& error) {
    return Corrupt(fmt::format("the layout text does not hold: {}", error.what()));
  }
  return {};
}

std::vector<TileOffsets> PlanTiles(const Layout& layout) {
  std::vector<TileOffsets> offsets;
  TileOffsets next;
  for (const TileLayout& tile : layout.tiles) {
    offsets.push_back(next);
    next.weight += layout.WeightBytes(tile.elements);
    next.record += layout.RecordBytes(tile.elements);
  }
  return offsets;
}

void EncodeDescriptor(const Layout& layout, const TileLayout& tile, const TileOffsets& offsets,
                      std::span<std::byte> out) {
  Put<uint32_t>(out, 0, static_cast<uint32_t>(Index(tile.module)));
  Put<uint64_t>(out, 8, tile.begin);
  Put<uint64_t>(out, 16, tile.elements);
  Put<uint8_t>(out, 24, static_cast<uint8_t>(tile.group));
  const std::span<const RecordState> states = StatesOf(layout.dtype);
  Put<uint8_t>(out, 25, static_cast<uint8_t>(states.size()));
  for (size_t i = 0; i < states.size(); ++i) {
    Put<uint8_t>(out, 26 + i, states[i].kind);
    Put<uint8_t>(out, 32 + i, states[i].dtype);
  }
  Put<uint64_t>(out, 40, offsets.weight.value);
  Put<uint64_t>(out, 48, offsets.record.value);
}

/// Refuses what a version-1 writer never writes: other states, frozen tiles, other drives.
Status CheckDescriptor(std::span<const std::byte> bytes, DType dtype, size_t tile) {
  const std::span<const RecordState> states = StatesOf(dtype);
  bool known = Get<uint32_t>(bytes, 4) == 0 && Get<uint8_t>(bytes, 24) < kGroupCount &&
               Get<uint8_t>(bytes, 25) == states.size() && Get<uint16_t>(bytes, 38) == 0;
  for (size_t i = 0; known && i < states.size(); ++i) {
    known = Get<uint8_t>(bytes, 26 + i) == states[i].kind &&
            Get<uint8_t>(bytes, 32 + i) == states[i].dtype;
  }
  if (known) return {};
  return Corrupt(
      fmt::format("the descriptor of tile {} names a group, states or a drive that this "
                  "program does not know",
                  tile));
}

/// Rebuilds the tiles from their descriptors and checks that they cover each module exactly.
Status TilesFromDescriptors(std::span<const std::byte> bytes, StateHeader& header) {
  Layout& layout = header.layout;
  std::vector<uint64_t> covered(layout.modules.size(), 0);
  for (size_t at = 0; at < bytes.size(); at += kDescriptorBytes.value) {
    const auto one = bytes.subspan(at, kDescriptorBytes.value);
    const size_t number = layout.tiles.size();
    PENSTOCK_TRY(CheckDescriptor(one, layout.dtype, number));
    const auto module = Get<uint32_t>(one, 0);
    const TileLayout tile{.module = ModuleId{module},
                          .begin = Get<uint64_t>(one, 8),
                          .elements = Get<uint64_t>(one, 16),
                          .group = static_cast<ParameterGroup>(Get<uint8_t>(one, 24))};
    const bool in_order = number == 0 || Index(layout.tiles.back().module) <= module;
    if (module >= layout.modules.size() || !in_order || tile.begin != covered[module] ||
        tile.elements == 0 || tile.elements % kBlockElements != 0 ||
        tile.elements > layout.modules[module].elements - tile.begin) {
      return Corrupt(fmt::format("the descriptor of tile {} does not hold", number));
    }
    ModuleLayout& owner = layout.modules[module];
    if (owner.tile_count++ == 0) owner.first_tile = TileId{static_cast<uint32_t>(number)};
    covered[module] += tile.elements;
    layout.tiles.push_back(tile);
    header.tiles.push_back(
        {.weight = Bytes{Get<uint64_t>(one, 40)}, .record = Bytes{Get<uint64_t>(one, 48)}});
  }
  for (size_t i = 0; i < covered.size(); ++i) {
    if (covered[i] != layout.modules[i].elements) {
      return Corrupt(fmt::format("the tiles of module {} do not cover it", layout.modules[i].name));
    }
  }
  return {};
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

/// Every region lies in the file, and every tile in its slot's regions.
Status CheckRegions(const StateHeader& header) {
  const StateGeometry& plan = header.geometry;
  const Layout& layout = header.layout;
  bool inside = plan.alignment.value > 0 && plan.alignment.value % kHeaderBytes.value == 0;
  for (int i = 0; i < 2; ++i) {
    inside = inside && Inside(plan.commit_offset[i], plan.commit_bytes, plan.file_bytes);
    for (size_t tile = 0; inside && tile < layout.tiles.size(); ++tile) {
      const uint64_t elements = layout.tiles[tile].elements;
      const TileOffsets& at = header.tiles[tile];
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
    return Corrupt("not a penstock state file, or one whose creation was never finished");
  }
  if (const auto version = Get<uint32_t>(bytes, 8); version != kStateFormatVersion) {
    return Unknown(fmt::format("format version {}", version));
  }
  if (Checksum(bytes.first(kHeaderChecksumAt)) != Get<uint64_t>(bytes, kHeaderChecksumAt)) {
    return Corrupt("the checksum of the header does not hold");
  }
  const auto flags = Get<uint64_t>(bytes, 32);
  const auto dtype = Get<uint32_t>(bytes, 12);
  const bool split = (flags & kFlagSplitMaster) != 0;
  if ((flags & ~(kFlagTwoSlots | kFlagSplitMaster)) != 0 ||
      dtype != static_cast<uint32_t>(split ? DType::kBFloat16 : DType::kFloat32)) {
    return Unknown("feature flags or a weight dtype");
  }
  if (Get<uint32_t>(bytes, 40) != 1 || Get<uint32_t>(bytes, 48) != 1) {
    return Unknown("several ranks or paths");
  }
  return {};
}

}  // namespace

StateHeader PlanState(const Uuid& uuid, const Layout& layout, Bytes alignment, int slots) {
  PENSTOCK_CHECK(alignment.value % kHeaderBytes.value == 0 && (slots == 1 || slots == 2));
  StateHeader header{.uuid = uuid,
                     .geometry = {.alignment = alignment, .slots = slots},
                     .layout = layout,
                     .tiles = PlanTiles(layout)};
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
  plan.commit_bytes =
      AlignUp(Bytes{kCommitFixedBytes + kCommitTileBytes * layout.tiles.size() + sizeof(uint64_t)} +
                  kCommitJsonLimit,
              alignment);
  for (FileOffset& offset : plan.commit_offset) offset = place(plan.commit_bytes);
  for (int slot = 0; slot < 2; ++slot) {
    if (slot < slots) {
      plan.weights_offset[slot] = place(layout.WeightBytes(layout.elements()));
      plan.records_offset[slot] = place(layout.RecordBytes(layout.elements()));
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
  Put<uint32_t>(out, 48, 1);  // number of paths
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
  StateHeader header{.geometry = ReadGeometry(bytes)};
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
    return Corrupt("the checksum of layout and descriptors does not hold");
  }
  PENSTOCK_TRY(ModulesFromJson(std::string(reinterpret_cast<const char*>(text.data()), text.size()),
                               layout));
  PENSTOCK_TRY(TilesFromDescriptors(tiles, header));
  PENSTOCK_TRY(CheckRegions(header));
  return header;
}

std::vector<std::byte> EncodeCommit(const Uuid& uuid, const CommitRecord& record) {
  const size_t size = kCommitFixedBytes + kCommitTileBytes * record.tiles.size() +
                      record.json.size() + sizeof(uint64_t);
  std::vector<std::byte> bytes(size);
  const std::span<std::byte> out(bytes);
  std::memcpy(bytes.data(), kCommitMagic.data(), kCommitMagic.size());
  Put<uint64_t>(out, 8, record.sequence);
  std::memcpy(bytes.data() + 16, uuid.data(), uuid.size());
  const uint64_t fields[] = {size,        record.tiles.size(),    record.json.size(),
                             record.step, record.optimizer_steps, record.skipped_in_a_row,
                             record.seed};
  for (size_t i = 0; i < std::size(fields); ++i) Put<uint64_t>(out, 32 + 8 * i, fields[i]);
  Put<uint32_t>(out, 88, record.compute_threads);
  size_t at = kCommitFixedBytes;
  for (const CommittedTile& tile : record.tiles) {
    Put<uint64_t>(out, at, tile.version);
    Put<uint64_t>(out, at + 8, tile.checksums.weight);
    Put<uint64_t>(out, at + 16, tile.checksums.record);
    Put<uint32_t>(out, at + 24, tile.slot);
    at += kCommitTileBytes;
  }
  std::memcpy(bytes.data() + at, record.json.data(), record.json.size());
  Put<uint64_t>(out, size - 8, Checksum(std::span(bytes).first(size - 8)));
  return bytes;
}

Result<CommitRecord> DecodeCommit(const Uuid& uuid, std::span<const std::byte> bytes) {
  if (bytes.size() < kCommitFixedBytes + 8) return Corrupt("a commit place is too small");
  if (Get<uint64_t>(bytes, 0) == 0) {
    return MakeError(ErrorCode::kNotFound, "the place holds no commit");
  }
  const auto size = Get<uint64_t>(bytes, 32);
  const auto tiles = Get<uint64_t>(bytes, 40);
  const auto json = Get<uint64_t>(bytes, 48);
  if (std::memcmp(bytes.data(), kCommitMagic.data(), kCommitMagic.size()) != 0 ||
      std::memcmp(bytes.data() + 16, uuid.data(), uuid.size()) != 0 || size > bytes.size() ||
      tiles > bytes.size() / kCommitTileBytes || json > bytes.size() ||
      size != kCommitFixedBytes + kCommitTileBytes * tiles + json + 8 ||
      Checksum(bytes.first(size - 8)) != Get<uint64_t>(bytes, size - 8)) {
    return Corrupt("a commit record does not hold: wrong magic, UUID, size or checksum");
  }
  CommitRecord record{.sequence = Get<uint64_t>(bytes, 8),
                      .step = Get<uint64_t>(bytes, 56),
                      .optimizer_steps = Get<uint64_t>(bytes, 64),
                      .skipped_in_a_row = Get<uint64_t>(bytes, 72),
                      .seed = Get<uint64_t>(bytes, 80),
                      .compute_threads = Get<uint32_t>(bytes, 88)};
  size_t at = kCommitFixedBytes;
  for (uint64_t i = 0; i < tiles; ++i, at += kCommitTileBytes) {
    record.tiles.push_back({.version = Get<uint64_t>(bytes, at),
                            .checksums = {.weight = Get<uint64_t>(bytes, at + 8),
                                          .record = Get<uint64_t>(bytes, at + 16)},
                            .slot = Get<uint32_t>(bytes, at + 24)});
    if (record.tiles.back().slot > 1) return Corrupt("a commit record names a slot beyond 1");
  }
  record.json.assign(reinterpret_cast<const char*>(bytes.data() + at), json);
  return record;
}

}  // namespace penstock::offload
