#include "numerics/report.h"

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

namespace penstock::train {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array kKinds = {"nonfinite",  "headroom", "streak",    "loss_spike",
                               "norm_spike", "update",   "underflow", "overflows"};
constexpr std::array kPasses = {"forward", "backward", "update"};

template <typename T>
Json OrNull(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

/// The index of a name in a table; nothing if it is not there.
template <typename Table>
std::optional<size_t> Find(const Table& table, const nlohmann::json& name) {
  for (size_t i = 0; i < table.size(); ++i) {
    if (name.is_string() && name.get_ref<const std::string&>() == table[i]) return i;
  }
  return {};
}

const nlohmann::json& At(const nlohmann::json& json, const char* key) {
  static const nlohmann::json kNull;
  const auto found = json.find(key);
  return found == json.end() ? kNull : *found;
}

std::optional<uint64_t> Whole(const nlohmann::json& value) {
  if (!value.is_number_unsigned()) return {};
  return value.get<uint64_t>();
}

std::optional<std::string> Text(const nlohmann::json& value) {
  if (!value.is_string()) return {};
  return value.get<std::string>();
}

}  // namespace

const char* ToString(ReportKind kind) { return kKinds.at(static_cast<size_t>(kind)); }
const char* ToString(Pass pass) { return kPasses.at(static_cast<size_t>(pass)); }

std::string ToJson(const Report& report) {
  const Json json = {
      {"step", report.step},
      {"kind", ToString(report.kind)},
      {"tensor", OrNull(report.tensor)},
      {"layer", OrNull(report.layer)},
      {"pass", report.pass ? Json(ToString(*report.pass)) : Json()},
      {"micro_batch", OrNull(report.micro_batch)},
      {"rows", report.rows.empty() ? Json() : Json(report.rows)},
      {"value", OrNull(report.value)},  // nlohmann writes what is not finite as null
      {"message", report.message},
  };
  return json.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

std::optional<Report> ParseReport(std::string_view line) {
  const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return {};
  const std::optional<uint64_t> step = Whole(At(json, "step"));
  const std::optional<size_t> kind = Find(kKinds, At(json, "kind"));
  const std::optional<std::string> message = Text(At(json, "message"));
  if (!step || *step == 0 || !kind || !message) return {};
  Report report{.step = *step, .kind = static_cast<ReportKind>(*kind), .message = *message};
  report.tensor = Text(At(json, "tensor"));
  const std::optional<uint64_t> layer = Whole(At(json, "layer"));
  if (layer && *layer <= UINT32_MAX) report.layer = static_cast<uint32_t>(*layer);
  if (const auto pass = Find(kPasses, At(json, "pass"))) report.pass = static_cast<Pass>(*pass);
  report.micro_batch = Whole(At(json, "micro_batch"));
  if (At(json, "rows").is_array()) {
    for (const nlohmann::json& row : At(json, "rows")) {
      if (const auto number = Whole(row)) report.rows.push_back(*number);
    }
  }
  if (At(json, "value").is_number()) report.value = At(json, "value").get<double>();
  return report;
}

}  // namespace penstock::train
