#include "numerics/headroom_log.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "numerics/headroom.h"
#include "numerics/thresholds.h"

namespace penstock::train {
namespace {

using Figure = std::optional<double> LayerNumbers::*;

struct NamedFigure {
  const char* name;
  Figure figure;
};
constexpr NamedFigure kFigures[] = {{"attention", &LayerNumbers::attention},
                                    {"mlp", &LayerNumbers::mlp},
                                    {"residual", &LayerNumbers::residual}};

bool HasChanged(const std::optional<double>& before, const std::optional<double>& now) {
  if (!before || !now) return before.has_value() != now.has_value();
  const double from = HeadroomBits(*before), to = HeadroomBits(*now);
  if (!std::isfinite(from) || !std::isfinite(to)) {
    return std::isfinite(from) != std::isfinite(to);
  }
  return std::abs(from - to) >= kHeadroomChange;
}

bool HasChanged(const LayerNumbers& before, const LayerNumbers& now) {
  return std::ranges::any_of(kFigures, [&](const NamedFigure& of) {
    return HasChanged(before.*of.figure, now.*of.figure);
  });
}

}  // namespace

std::optional<std::string> HeadroomLog::Step(const StepNumbers& numbers) {
  const std::vector<LayerNumbers>& now = numbers.layers;
  if (now.empty()) return {};
  bool changed = now.size() != written_.size();
  for (size_t i = 0; !changed && i < now.size(); ++i) changed = HasChanged(written_[i], now[i]);
  if (!changed) return {};
  written_ = now;
  nlohmann::ordered_json json = {{"step", numbers.step}};
  for (const NamedFigure& of : kFigures) {
    nlohmann::ordered_json& list = json[of.name] = nlohmann::ordered_json::array();
    for (const LayerNumbers& layer : now) {
      const std::optional<double>& value = layer.*of.figure;
      list.push_back(value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json());
    }
  }
  return json.dump();
}

std::optional<HeadroomRow> ParseHeadroomRow(std::string_view line) {
  const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("step") || !json["step"].is_number_unsigned()) return {};
  HeadroomRow row{.step = json["step"].get<uint64_t>()};
  if (row.step == 0) return {};
  for (const NamedFigure& of : kFigures) {
    if (!json.contains(of.name) || !json[of.name].is_array()) return {};
    const auto& list = json[of.name];
    row.layers.resize(std::max(row.layers.size(), list.size()));
    for (size_t i = 0; i < list.size(); ++i) {
      if (list[i].is_number()) row.layers[i].*of.figure = list[i].template get<double>();
    }
  }
  return row;
}

}  // namespace penstock::train
