#include "front/model_text.h"

#include <limits>
#include <set>
#include <utility>

#include "base/strict_json.h"
#include "front/text_section.h"
#include "offload/state_format.h"
#include "zero/plan/use_order.h"

namespace penstock::front {
namespace {

/// The most elements of a tensor, so that no sum of sizes comes near 2^64.
constexpr uint64_t kMaxElements = uint64_t{1} << 48;

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
    if (extent == 0 || extent > kMaxElements / elements) {
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
  if (elements > kMaxElements / 2) {
    model.Fail("units", fmt::format("have {} elements, and at most 2^47 can be trained", elements));
  }
  if (spec.groups.size() > offload::kMaxGroups) {
    model.Fail("groups", fmt::format("has {} entries, and at most {} can be", spec.groups.size(),
                                     offload::kMaxGroups));
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
  constexpr uint64_t kMaxInteger = std::numeric_limits<int64_t>::max();
  if (section.Find("host_memory") != nullptr) {
    options.host_memory = Bytes{section.Number("host_memory", 0, 1, kMaxInteger)};
  }
  options.slots = static_cast<uint32_t>(section.Number("slots", 2, 1, 1U << 20));
  options.seed = section.Number("seed", 0, 0, std::numeric_limits<uint64_t>::max());
  options.cuda = section.Bool("cuda", false);
  if (section.Find("reports_loss") != nullptr) {
    options.losses = section.Bool("reports_loss", false) ? zero::LossReports::kEachStep
                                                         : zero::LossReports::kNever;
  }
  options.scales_loss = section.Bool("scales_loss", false);
  options.holds_gradients = section.Bool("holds_gradients", false);
  if (section.Find("device_sums") != nullptr) {
    options.device_sums = Bytes{section.Number("device_sums", 0, 0, kMaxInteger)};
  }
  if (section.Find("step") != nullptr) {
    options.step = section.Number("step", 0, 0, kMaxInteger);
    if (options.continue_from.empty())
      section.Fail("step", "needs continue, the files of a commit");
  }
  section.End();
  if (error) return *error;
  return options;
}

}  // namespace penstock::front
