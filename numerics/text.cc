#include "numerics/text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

namespace penstock::train {
namespace {

/// A line stays a line: of more rows the first ones are named.
constexpr size_t kNamedRows = 8;

}  // namespace

std::string NumberText(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-infinite" : "infinite";
  return fmt::format("{:.4g}", value);
}

std::string ScaleText(double scale) {
  int exponent = 0;
  const bool power = std::isfinite(scale) && scale >= 2 && std::frexp(scale, &exponent) == 0.5;
  return power ? fmt::format("2^{}", exponent - 1) : NumberText(scale);
}

std::string InAboutText(double seconds) {
  if (seconds < 90) return fmt::format("in about {:.0f} s", std::max(seconds, 1.0));
  if (seconds < 90 * 60) return fmt::format("in about {:.0f} min", std::round(seconds / 60));
  return fmt::format("in about {:.1f} h", seconds / 3600);
}

std::string PlaceText(const std::optional<uint32_t>& layer,
                      const std::optional<uint64_t>& micro_batch,
                      const std::vector<uint64_t>& rows) {
  std::vector<std::string> parts;
  if (layer) parts.push_back(fmt::format("layer {}", *layer));
  if (micro_batch) parts.push_back(fmt::format("micro-batch {}", *micro_batch));
  if (!rows.empty()) {
    const auto end = rows.begin() + static_cast<std::ptrdiff_t>(std::min(rows.size(), kNamedRows));
    parts.push_back(fmt::format("row{} {}{}", rows.size() == 1 ? "" : "s",
                                fmt::join(rows.begin(), end, ", "),
                                rows.size() > kNamedRows ? ", …" : ""));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string OthersText(size_t count, size_t all) {
  if (count < 2) return "";
  return fmt::format(" ({} more of {} tensors)", count - 1, all);
}

}  // namespace penstock::train
