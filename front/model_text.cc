#include "front/model_text.h"

#include <initializer_list>
#include <limits>
#include <set>
#include <string_view>
#include <utility>

#include "base/strict_json.h"
#include "offload/state_format.h"
#include "zero/use_order.h"

namespace penstock::front {
namespace {

using nlohmann::json;

/// The most elements of a tensor, so that no sum of sizes comes near 2^64.
constexpr uint64_t kMostElements = uint64_t{1} << 48;

/// One object of a text, read strictly. The first thing that is wrong is kept.
class Section {
 public:
  /// `path`: of the object in its text, as in "units[3]"; empty for the text itself.
  Section(const json& object, std::string name, std::string path, std::optional<Error>* error)
      : object_(object), name_(std::move(name)), path_(std::move(path)), error_(error) {
    if (!object_.is_object()) Fail("", "is no object");
  }

  const json* Find(const char* key) {
    known_.insert(key);
    if (!object_.is_object()) return nullptr;
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  std::string Text(const char* key) {
    const json* value = Find(key);
    if (value != nullptr && value->is_string() && !value->get_ref<const std::string&>().empty()) {
      return value->get<std::string>();
    }
    Fail(key, value == nullptr ? "is missing" : Is(*value, "no text"));
    return {};
  }
  uint64_t Number(const char* key, uint64_t fallback, uint64_t least, uint64_t most) {
    const json* value = Find(key);
    if (value == nullptr) return fallback;
    if (value->is_number_unsigned()) {
      const auto number = value->get<uint64_t>();
      if (number >= least && number <= most) return number;
    }
    Fail(key, Is(*value, fmt::format("no whole number from {} to {}", least, most)));
    return fallback;
  }
  bool Bool(const char* key, bool fallback) {
    const json* value = Find(key);
    if (value == nullptr) return fallback;
    if (!value->is_boolean()) Fail(key, Is(*value, "neither true nor false"));
    return value->is_boolean() && value->get<bool>();
  }
  /// Returns the elements of a list; none if it is absent.
  std::vector<json> List(const char* key) {
    const json* value = Find(key);
    if (value == nullptr) return {};
    if (!value->is_array()) Fail(key, Is(*value, "no list"));
    return value->is_array() ? value->get<std::vector<json>>() : std::vector<json>();
  }
  std::vector<std::string> Texts(const char* key) {
    std::vector<std::string> texts;
    for (const json& element : List(key)) {
      if (element.is_string() && !element.get_ref<const std::string&>().empty()) {
        texts.push_back(element.get<std::string>());
      } else {
        Fail(key, Is(element, "no text"));
      }
    }
    return texts;
  }
  /// An object within this one.
  Section At(const json& object, const char* key, size_t index) const {
    return {object, name_, fmt::format("{}{}{}[{}]", path_, path_.empty() ? "" : ".", key, index),
            error_};
  }
  /// Says what is wrong with a key; with the object itself where it is empty.
  void Fail(std::string_view key, const std::string& what) {
    if (*error_) return;
    const char* dot = path_.empty() || key.empty() ? "" : ".";
    *error_ = MakeError(ErrorCode::kInvalidArgument, "{}: {}{}{} {}", name_, path_, dot, key, what);
  }
  /// Fails for a key that nobody asked for.
  void End() {
    if (!object_.is_object()) return;
    for (const auto& [key, value] : object_.items()) {
      if (known_.contains(key)) continue;
      std::string keys;
      for (const std::string& known : known_) keys += (keys.empty() ? "" : ", ") + known;
      Fail(key, "is unknown; known here are " + keys);
    }
  }

 private:
  static std::string Is(const json& value, const std::string& what) {
    return fmt::format("is {}, which is {}", Excerpt(value), what);
  }

  const json& object_;
  std::string name_;
  std::string path_;
  std::optional<Error>* error_;
  std::set<std::string> known_;
};

std::optional<DType> WeightOf(Section& group) {
  const json* value = group.Find("dtype");
  if (value == nullptr) return std::nullopt;
  if (*value == "fp32") return DType::kFloat32;
  if (*value == "bf16") return DType::kBFloat16;
  if (*value == "fp16") return DType::kFloat16;
  group.Fail("dtype", fmt::format("is {}, which is none of fp32, bf16 and fp16", Excerpt(*value)));
  return std::nullopt;
}

zero::GroupSpec ReadGroup(Section group) {
  zero::GroupSpec spec{.name = group.Text("name")};
  spec.weight = WeightOf(group);
  spec.frozen = group.Bool("frozen", false);
  group.End();
  return spec;
}

zero::TensorSpec ReadTensor(Section tensor, size_t groups) {
  zero::TensorSpec spec{.name = tensor.Text("name"), .shape = {}};
  uint64_t elements = 1;
  for (const json& size : tensor.List("shape")) {
    const uint64_t extent = size.is_number_unsigned() ? size.get<uint64_t>() : 0;
    if (extent == 0 || extent > kMostElements / elements) {
      tensor.Fail("shape", fmt::format("has {}; sizes are whole numbers from 1, and a tensor has "
                                       "at most 2^48 elements",
                                       Excerpt(size)));
      break;
    }
    elements *= extent;
    spec.shape.push_back(extent);
  }
  const uint64_t group = tensor.Number("group", 0, 0, groups == 0 ? 0 : groups - 1);
  spec.group = offload::GroupId{static_cast<uint32_t>(group)};
  tensor.End();
  return spec;
}

zero::ModuleSpec ReadUnit(Section unit, size_t groups, std::set<std::string>* names) {
  zero::ModuleSpec spec{.name = unit.Text("name"), .tensors = {}};
  spec.repeated = unit.Bool("repeated", false);
  const std::vector<json> tensors = unit.List("tensors");
  if (tensors.empty()) unit.Fail("tensors", "is empty; leave units without tensors out");
  for (size_t i = 0; i < tensors.size(); ++i) {
    spec.tensors.push_back(ReadTensor(unit.At(tensors[i], "tensors", i), groups));
    const std::string& name = spec.tensors.back().name;
    if (!names->insert(name).second) {
      unit.Fail("tensors", fmt::format("names {}, which the model has already", name));
    }
  }
  unit.End();
  return spec;
}

/// The limits of the state file (offload/state_format.h).
void CheckSize(const zero::ModelSpec& spec, Section& model) {
  uint64_t elements = 0;
  for (const zero::ModuleSpec& unit : spec.modules) {
    for (const zero::TensorSpec& tensor : unit.tensors) {
      elements = SaturatingAdd(elements, tensor.elements());
    }
  }
  if (elements > kMostElements / 2) {
    model.Fail("units", fmt::format("have {} elements, and at most 2^47 can be trained", elements));
  }
  if (spec.groups.size() > offload::kMostGroups) {
    model.Fail("groups", fmt::format("has {} entries, and at most {} can be", spec.groups.size(),
                                     offload::kMostGroups));
  }
}

}  // namespace

Result<zero::ModelSpec> ParseModel(const std::string& text) {
  PENSTOCK_ASSIGN(const json object, ParseJsonObject(text, "model", ErrorCode::kInvalidArgument));
  std::optional<Error> error;
  Section model(object, "model", "", &error);
  zero::ModelSpec spec{.groups = {}};
  const std::vector<json> groups = model.List("groups");
  if (groups.empty()) model.Fail("groups", "is missing or empty");
  for (size_t i = 0; i < groups.size(); ++i) {
    spec.groups.push_back(ReadGroup(model.At(groups[i], "groups", i)));
  }
  const std::vector<json> units = model.List("units");
  if (units.empty()) model.Fail("units", "is missing or empty");
  std::set<std::string> names;
  for (size_t i = 0; i < units.size(); ++i) {
    spec.modules.push_back(ReadUnit(model.At(units[i], "units", i), groups.size(), &names));
  }
  model.End();
  CheckSize(spec, model);
  if (error) return *error;
  return zero::WithOrder(std::move(spec));
}

Result<Options> ParseOptions(const std::string& text) {
  PENSTOCK_ASSIGN(const json object, ParseJsonObject(text, "options", ErrorCode::kInvalidArgument));
  std::optional<Error> error;
  Section section(object, "options", "", &error);
  Options options{.folders = section.Texts("folders"),
                  .continue_from = section.Texts("continue"),
                  .step = std::nullopt,
                  .host_memory = std::nullopt,
                  .device_sums = std::nullopt};
  constexpr uint64_t kMost = std::numeric_limits<int64_t>::max();
  if (section.Find("host_memory") != nullptr) {
    options.host_memory = Bytes{section.Number("host_memory", 0, 1, kMost)};
  }
  options.slots = static_cast<uint32_t>(section.Number("slots", 2, 1, 1U << 20));
  options.seed = section.Number("seed", 0, 0, std::numeric_limits<uint64_t>::max());
  options.cuda = section.Bool("cuda", false);
  options.reports_loss = section.Bool("reports_loss", false);
  options.scales_loss = section.Bool("scales_loss", false);
  if (section.Find("device_sums") != nullptr) {
    options.device_sums = Bytes{section.Number("device_sums", 0, 0, kMost)};
  }
  if (section.Find("step") != nullptr) {
    options.step = section.Number("step", 0, 0, kMost);
    if (options.continue_from.empty())
      section.Fail("step", "needs continue, the files of a commit");
  }
  section.End();
  if (error) return *error;
  return options;
}

}  // namespace penstock::front
