#include "sizing/shape_report.h"

#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>
#include <utility>

namespace penstock::train {
namespace {

std::array<std::pair<const char*, uint64_t>, 6> NamedKinds(const ParameterKinds& kinds) {
  return {{{"embedding", kinds.embedding},
           {"positions", kinds.positions},
           {"attention", kinds.attention},
           {"mlp", kinds.mlp},
           {"norms", kinds.norms},
           {"head", kinds.head}}};
}

}  // namespace

std::string ShapeText(const ModelShape& shape) {
  const ParameterKinds kinds = CountParameters(shape);
  std::string text = fmt::format(
      "{}: {} parameters ({:.1f}B), width to depth {}, {} in the largest "
      "module\n",
      ToString(shape.family), kinds.total(), static_cast<double>(kinds.total()) / 1e9,
      WidthToDepth(shape), LargestModule(shape));
  for (const auto& [name, count] : NamedKinds(kinds)) {
    if (count > 0) text += fmt::format("  {:<10}{:>20}\n", name, count);
  }
  return text;
}

nlohmann::json ShapeJson(const ModelShape& shape) {
  const ParameterKinds kinds = CountParameters(shape);
  return {{"family", ToString(shape.family)},
          {"parameters", kinds.total()},
          {"parameters_by_kind", KindsJson(kinds)},
          {"largest_module", LargestModule(shape)},
          {"width_to_depth", WidthToDepth(shape)}};
}

std::string KindsText(const ParameterKinds& kinds) {
  std::string text;
  for (const auto& [name, count] : NamedKinds(kinds)) {
    if (count > 0) text += fmt::format("{}{} {}", text.empty() ? "" : " + ", name, count);
  }
  return text;
}

nlohmann::json KindsJson(const ParameterKinds& kinds) {
  nlohmann::json object = nlohmann::json::object();
  for (const auto& [name, count] : NamedKinds(kinds)) object[name] = count;
  return object;
}

}  // namespace penstock::train
