#include "offload/layout_text.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "base/strict_json.h"
#include "offload/state_format.h"

namespace penstock::offload {
namespace {

using Json = nlohmann::json;

constexpr PlaneRole kRoles[] = {PlaneRole::kWeight, PlaneRole::kLo, PlaneRole::kMaster,
                                PlaneRole::kExpAvg, PlaneRole::kExpAvgSq};
constexpr Encoding kEncodings[] = {Encoding::kFloat32, Encoding::kBFloat16, Encoding::kFloat16,
                                   Encoding::kInt16, Encoding::kBlockwise8};

template <typename Name>
std::optional<Name> FromName(std::span<const Name> names, const std::string& text) {
  for (const Name name : names) {
    if (text == ToString(name)) return name;
  }
  return std::nullopt;
}

/// Throws if it is something else, of which a conversion would make a number, too.
uint64_t Unsigned(const Json& json) { return json.get_ref<const Json::number_unsigned_t&>(); }

Result<Plane> PlaneFromJson(const Json& json) {
  const auto role = FromName<PlaneRole>(kRoles, json.at("role").get<std::string>());
  const auto encoding = FromName<Encoding>(kEncodings, json.at("encoding").get<std::string>());
  if (!role || !encoding) {
    return MakeError(
        ErrorCode::kUnavailable,
        "it has a plane of role {} and encoding {}, which this version of penstock does "
        "not read",
        json.at("role").dump(), json.at("encoding").dump());
  }
  return *encoding == Encoding::kBlockwise8 ? MakeBlockwise8Plane(*role)
                                            : MakePlane(*role, *encoding);
}

Json ToJson(const GroupLayout& group) {
  Json planes = Json::array();
  for (const Plane& plane : group.planes.all()) {
    planes.push_back({{"role", ToString(plane.role)},
                      {"encoding", ToString(plane.encoding)},
                      {"block_bytes", plane.block.value}});
  }
  return {{"name", group.name},
          {"frozen", group.frozen},
          {"parameter_group", group.parameter_group},
          {"planes", std::move(planes)}};
}

Result<GroupLayout> GroupFromJson(const Json& json) {
  const auto name = json.at("name").get<std::string>();
  const bool frozen = json.at("frozen").get<bool>();
  std::vector<Plane> planes;
  for (const Json& entry : json.at("planes")) {
    PENSTOCK_ASSIGN(const Plane plane, PlaneFromJson(entry));
    if (std::ranges::find(planes, plane.role, &Plane::role) != planes.end()) {
      return Corrupt(fmt::format("group {} has two planes of one role", name));
    }
    planes.push_back(plane);
  }
  const uint64_t parameter_group = Unsigned(json.at("parameter_group"));
  const bool some = !planes.empty() && planes.size() <= Planes::kMaxCount &&
                    planes.front().role == PlaneRole::kWeight;
  if (!some || !CanBe(Planes(planes), frozen) || parameter_group >= kMaxGroups) {
    return Corrupt(fmt::format("the planes of group {} cannot be", name));
  }
  return GroupLayout{.name = name,
                     .planes = Planes(planes),
                     .frozen = frozen,
                     .parameter_group = static_cast<uint32_t>(parameter_group)};
}

Result<TensorLayout> TensorFromJson(const Json& json, size_t groups) {
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
  if (group >= groups) {
    return Corrupt(fmt::format("tensor {} is of group {}, which is none", tensor.name, group));
  }
  tensor.group = static_cast<GroupId>(group);
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

/// The module as MakeModule makes it, which is to be the one that was read: with the same tensors
/// at the same places.
Result<ModuleLayout> Remake(const ModuleLayout& module) {
  std::vector<TensorShape> tensors;
  for (const TensorLayout& tensor : module.tensors) {
    tensors.push_back({.name = tensor.name, .shape = tensor.shape, .group = tensor.group});
  }
  ModuleLayout made = MakeModule(module.name, tensors);
  if (module.elements != made.elements) {
    return Corrupt(
        fmt::format("the tiles of module {} do not cover it: it has {} elements, and its tensors "
                    "take {}",
                    module.name, module.elements, made.elements));
  }
  for (size_t i = 0; i < made.tensors.size(); ++i) {
    if (module.tensors[i] == made.tensors[i]) continue;
    return Corrupt(fmt::format("tensor {} is at offset {}, where a writer puts it at {}",
                               made.tensors[i].name, module.tensors[i].offset,
                               made.tensors[i].offset));
  }
  return made;
}

Result<ModuleLayout> ModuleFromJson(const Json& json, size_t groups) {
  ModuleLayout module{.name = json.at("name").get<std::string>(),
                      .elements = Unsigned(json.at("elements"))};
  if (module.elements == 0 || module.elements > kMaxElements) {
    return Corrupt(fmt::format("module {} has {} elements", module.name, module.elements));
  }
  for (const Json& entry : json.at("tensors")) {
    PENSTOCK_ASSIGN(TensorLayout tensor, TensorFromJson(entry, groups));
    module.tensors.push_back(std::move(tensor));
  }
  PENSTOCK_TRY(CheckTensors(module));
  return module;
}

/// What holds of all modules together.
Status CheckModules(const ModelLayout& model) {
  std::set<std::string_view> names;
  uint64_t elements = 0;
  uint64_t parameters = 0;
  for (const ModuleLayout& module : model.modules) {
    elements += module.elements;
    // Each is within the limit, so the sum cannot have left it by more than one of them.
    if (elements > kMaxElements) return Corrupt("the modules have more than 2^48 elements");
    for (const TensorLayout& tensor : module.tensors) {
      parameters += tensor.elements;
      if (names.insert(tensor.name).second) continue;
      return Corrupt(fmt::format("two tensors have the name {}", tensor.name));
    }
  }
  if (parameters == model.parameters) return {};
  return Corrupt(fmt::format("the tensors have {} elements where the header names {} parameters",
                             parameters, model.parameters));
}

Json ToJson(const ModuleLayout& module) {
  Json tensors = Json::array();
  for (const TensorLayout& tensor : module.tensors) {
    tensors.push_back({{"name", tensor.name},
                       {"shape", tensor.shape},
                       {"group", Index(tensor.group)},
                       {"offset", tensor.offset}});
  }
  return {{"name", module.name}, {"elements", module.elements}, {"tensors", std::move(tensors)}};
}

/// Adds what the text holds.
Status Read(const Json& document, uint32_t version, const std::optional<Planes>& v1_planes,
            ModelLayout& model) {
  if (version == 1) {
    model.groups = DecayGroups(v1_planes.value());
  } else {
    for (const Json& entry : document.at("groups")) {
      PENSTOCK_ASSIGN(GroupLayout group, GroupFromJson(entry));
      const bool in_order = model.groups.empty() || group.frozen || !model.groups.back().frozen;
      if (!in_order || model.groups.size() == kMaxGroups) {
        return Corrupt(
            fmt::format("group {} follows a frozen one, or is one too many", group.name));
      }
      model.groups.push_back(std::move(group));
    }
    if (model.groups.empty()) return Corrupt("the layout has no groups");
  }
  for (const Json& entry : document.at("modules")) {
    PENSTOCK_ASSIGN(ModuleLayout module, ModuleFromJson(entry, model.groups.size()));
    model.modules.push_back(std::move(module));
  }
  PENSTOCK_TRY(CheckModules(model));
  // No size overflows here any more.
  for (ModuleLayout& module : model.modules) {
    PENSTOCK_ASSIGN(module, Remake(module));
  }
  return {};
}

}  // namespace

Error Corrupt(const std::string& what) { return MakeError(ErrorCode::kCorruption, "{}", what); }

std::string ModelToJson(const ModelLayout& model, uint32_t version) {
  Json document = {{"modules", Json::array()}};
  for (const ModuleLayout& module : model.modules) document["modules"].push_back(ToJson(module));
  if (version > 1) {
    document["groups"] = Json::array();
    for (const GroupLayout& group : model.groups) document["groups"].push_back(ToJson(group));
  }
  return document.dump();
}

Result<ModelLayout> ModelFromJson(const std::string& text, uint32_t version,
                                  const std::optional<Planes>& v1_planes, uint64_t parameters) {
  ModelLayout model{.groups = {}, .modules = {}, .parameters = parameters};
  try {
    PENSTOCK_TRY(Read(Json::parse(text), version, v1_planes, model));
  } catch (const Json::exception& error) {
    return Corrupt(fmt::format("the layout text does not hold: {}", JsonReason(error)));
  }
  return model;
}

}  // namespace penstock::offload
