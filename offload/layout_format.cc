#include "offload/layout_format.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

#include "offload/byte_fields.h"

namespace penstock::offload {
namespace {

using Json = nlohmann::json;

/// Of the descriptors' dtypes, the one that DType does not have.
constexpr uint8_t kInt16 = 4;
constexpr size_t kMostStates = 6;
/// A descriptor's states: their number, and behind it a kind and a dtype for each.
constexpr size_t kStatesAt = 25;
constexpr size_t kKindsAt = kStatesAt + 1;
constexpr size_t kDtypesAt = kKindsAt + kMostStates;
constexpr size_t kStatesBytes = 1 + 2 * kMostStates;

/// Throws where it is something else: a conversion would make a number of that, too.
uint64_t Unsigned(const Json& json) { return json.get_ref<const Json::number_unsigned_t&>(); }

Result<TensorLayout> TensorFromJson(const Json& json) {
  TensorLayout tensor{.name = json.at("name").get<std::string>(),
                      .offset = Unsigned(json.at("offset")),
                      .elements = 1};
  for (const Json& size : json.at("shape")) {
    tensor.shape.push_back(Unsigned(size));
    if (__builtin_mul_overflow(tensor.elements, tensor.shape.back(), &tensor.elements)) {
      return Corrupt(
          fmt::format("the shape of tensor {} has more than 2^64 elements", tensor.name));
    }
  }
  const uint64_t group = Unsigned(json.at("group"));
  if (group >= kGroupCount) {
    return Corrupt(fmt::format("tensor {} is of group {}, which is none", tensor.name, group));
  }
  tensor.group = static_cast<ParameterGroup>(group);
  return tensor;
}

/// The tensors of a module have elements, and lie in it and beside each other.
Status CheckTensors(const ModuleLayout& module) {
  uint64_t free = 0;
  for (const size_t i : module.TensorsByOffset()) {
    const TensorLayout& tensor = module.tensors[i];
    if (tensor.elements == 0 || tensor.offset < free || tensor.offset > module.elements ||
        tensor.elements > module.elements - tensor.offset) {
      return Corrupt(fmt::format(
          "tensor {} with {} elements at offset {} overlaps another, or has no place in module {}, "
          "which has {}",
          tensor.name, tensor.elements, tensor.offset, module.name, module.elements));
    }
    free = tensor.offset + tensor.elements;
  }
  return {};
}

Result<ModuleLayout> ModuleFromJson(const Json& json) {
  ModuleLayout module{.name = json.at("name").get<std::string>(),
                      .elements = Unsigned(json.at("elements"))};
  if (module.elements == 0 || module.elements > kMostElements) {
    return Corrupt(fmt::format("module {} has {} elements", module.name, module.elements));
  }
  for (const Json& entry : json.at("tensors")) {
    PENSTOCK_ASSIGN(TensorLayout tensor, TensorFromJson(entry));
    module.tensors.push_back(std::move(tensor));
  }
  PENSTOCK_TRY(CheckTensors(module));
  return module;
}

/// What holds of all modules together.
Status CheckModules(const Layout& layout) {
  std::set<std::string_view> names;
  uint64_t elements = 0;
  uint64_t parameters = 0;
  for (const ModuleLayout& module : layout.modules) {
    elements += module.elements;
    // Each is within the limit, so the sum cannot have left it by more than one of them.
    if (elements > kMostElements) return Corrupt("the modules have more than 2^48 elements");
    for (const TensorLayout& tensor : module.tensors) {
      parameters += tensor.elements;
      if (names.insert(tensor.name).second) continue;
      return Corrupt(fmt::format("two tensors have the name {}", tensor.name));
    }
  }
  if (parameters == layout.parameters) return {};
  return Corrupt(fmt::format("the tensors have {} elements where the header names {} parameters",
                             parameters, layout.parameters));
}

/// Which states a record has: number, kinds and dtypes.
void EncodeStates(const Layout& layout, std::span<std::byte> descriptor) {
  uint8_t count = 0;
  for (const RecordState& state : layout.States()) {
    const bool is_lo = state.kind == RecordKind::kLo;
    Put<uint8_t>(descriptor, kKindsAt + count, static_cast<uint8_t>(state.kind));
    Put<uint8_t>(descriptor, kDtypesAt + count,
                 is_lo ? kInt16 : static_cast<uint8_t>(layout.moments.dtype));
    ++count;
  }
  Put<uint8_t>(descriptor, kStatesAt, count);
}

/// The moments that a descriptor names; what it names beside them is not looked at.
Moments MomentsOf(std::span<const std::byte> descriptor) {
  Moments moments{.exp_avg = false, .exp_avg_sq = false};
  for (size_t i = 0; i < kMostStates; ++i) {
    const auto kind = static_cast<RecordKind>(Get<uint8_t>(descriptor, kKindsAt + i));
    if (kind != RecordKind::kExpAvg && kind != RecordKind::kExpAvgSq) continue;
    (kind == RecordKind::kExpAvg ? moments.exp_avg : moments.exp_avg_sq) = true;
    const bool bf16 =
        Get<uint8_t>(descriptor, kDtypesAt + i) == static_cast<uint8_t>(DType::kBFloat16);
    moments.dtype = bf16 ? DType::kBFloat16 : DType::kFloat32;
  }
  return moments;
}

/// Whether a descriptor names the states of the layout's records, and nothing else.
bool HasStatesOf(const Layout& layout, std::span<const std::byte> descriptor) {
  std::array<std::byte, kDescriptorBytes.value> expected{};
  EncodeStates(layout, expected);
  return std::ranges::equal(descriptor.subspan(kStatesAt, kStatesBytes),
                            std::span(expected).subspan(kStatesAt, kStatesBytes));
}

/// Refuses what a version-1 writer never writes: other states, frozen tiles, paths that are not.
Status CheckDescriptor(std::span<const std::byte> bytes, uint32_t paths, const Layout& layout) {
  const Moments& moments = layout.moments;
  if (Get<uint32_t>(bytes, 4) == 0 && Get<uint8_t>(bytes, 24) < kGroupCount &&
      (moments.exp_avg || moments.exp_avg_sq) && HasStatesOf(layout, bytes) &&
      Get<uint16_t>(bytes, 38) < paths) {
    return {};
  }
  return Corrupt(
      fmt::format("the descriptor of tile {} names a group, states or a path that this "
                  "program does not know",
                  layout.tiles.size()));
}

}  // namespace

Error Corrupt(const std::string& what) { return MakeError(ErrorCode::kCorruption, "{}", what); }

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

Status ModulesFromJson(const std::string& text, Layout& layout) {
  try {
    const Json document = Json::parse(text);
    for (const Json& entry : document.at("modules")) {
      PENSTOCK_ASSIGN(ModuleLayout module, ModuleFromJson(entry));
      layout.modules.push_back(std::move(module));
    }
  } catch (const Json::exception& error) {
    return Corrupt(fmt::format("the layout text does not hold: {}", error.what()));
  }
  return CheckModules(layout);
}

void EncodeDescriptor(const Layout& layout, const TileLayout& tile, const TilePlace& place,
                      std::span<std::byte> out) {
  Put<uint32_t>(out, 0, static_cast<uint32_t>(Index(tile.module)));
  Put<uint64_t>(out, 8, tile.begin);
  Put<uint64_t>(out, 16, tile.elements);
  Put<uint8_t>(out, 24, static_cast<uint8_t>(tile.group));
  EncodeStates(layout, out);
  Put<uint16_t>(out, 38, place.path);
  Put<uint64_t>(out, 40, place.weight.value);
  Put<uint64_t>(out, 48, place.record.value);
}

Result<std::vector<uint16_t>> TilesFromDescriptors(std::span<const std::byte> bytes, uint32_t paths,
                                                   Layout& layout) {
  if (layout.tile_elements % kBlockElements != 0 || layout.tile_elements > kMostElements) {
    return Corrupt(fmt::format("the largest tile has {} elements", layout.tile_elements));
  }
  std::vector<uint16_t> path_of_tile;
  std::vector<uint64_t> covered(layout.modules.size(), 0);
  if (!bytes.empty()) layout.moments = MomentsOf(bytes);
  for (size_t at = 0; at < bytes.size(); at += kDescriptorBytes.value) {
    const auto one = bytes.subspan(at, kDescriptorBytes.value);
    const size_t number = layout.tiles.size();
    PENSTOCK_TRY(CheckDescriptor(one, paths, layout));
    const auto module = Get<uint32_t>(one, 0);
    const TileLayout tile{.module = ModuleId{module},
                          .begin = Get<uint64_t>(one, 8),
                          .elements = Get<uint64_t>(one, 16),
                          .group = static_cast<ParameterGroup>(Get<uint8_t>(one, 24))};
    const bool in_order = number == 0 || Index(layout.tiles.back().module) <= module;
    if (module >= layout.modules.size() || !in_order || tile.begin != covered[module] ||
        tile.elements == 0 || tile.elements % kBlockElements != 0 ||
        tile.elements > layout.tile_elements ||
        tile.elements > layout.modules[module].elements - tile.begin) {
      return Corrupt(fmt::format("the descriptor of tile {} does not hold", number));
    }
    ModuleLayout& owner = layout.modules[module];
    if (owner.tile_count++ == 0) owner.first_tile = TileId{static_cast<uint32_t>(number)};
    covered[module] += tile.elements;
    layout.tiles.push_back(tile);
    path_of_tile.push_back(Get<uint16_t>(one, 38));
  }
  for (size_t i = 0; i < covered.size(); ++i) {
    if (covered[i] != layout.modules[i].elements) {
      return Corrupt(fmt::format("the tiles of module {} do not cover it", layout.modules[i].name));
    }
  }
  return path_of_tile;
}

}  // namespace penstock::offload
