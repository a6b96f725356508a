#include "base/units.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string_view>

namespace penstock {
namespace {

struct Unit {
  std::string_view name;
  int shift;
};
constexpr std::array<Unit, 4> kUnits = {{{"TiB", 40}, {"GiB", 30}, {"MiB", 20}, {"KiB", 10}}};
constexpr uint64_t kMaxBytes = INT64_MAX;  // the largest file offset

/// The power of two that a suffix stands for.
std::optional<int> ShiftOf(std::string_view suffix) {
  if (suffix.empty()) return 0;
  for (const Unit& unit : kUnits) {
    if (suffix == unit.name) return unit.shift;
  }
  return std::nullopt;
}

/// Whole numbers are read as such: through a double, large ones would lose their last digits.
std::optional<uint64_t> ReadBytes(std::string_view text) {
  const char* const end = text.data() + text.size();
  uint64_t whole = 0;
  auto parsed = std::from_chars(text.data(), end, whole);
  if (parsed.ec != std::errc()) return std::nullopt;
  const bool fractional = parsed.ptr != end && *parsed.ptr == '.';
  double number = 0;
  if (fractional) parsed = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  const std::optional<int> shift = ShiftOf({parsed.ptr, static_cast<size_t>(end - parsed.ptr)});
  if (parsed.ec != std::errc() || !shift) return std::nullopt;
  if (!fractional) {
    if (whole > kMaxBytes >> *shift) return std::nullopt;
    return whole << *shift;
  }
  const double bytes = std::ldexp(number, *shift);
  if (!(bytes < 0x1p63) || bytes != std::floor(bytes)) return std::nullopt;
  return static_cast<uint64_t>(bytes);
}

}  // namespace

std::string ToString(Bytes size) {
  for (const Unit& unit : kUnits) {
    const double scaled = std::ldexp(static_cast<double>(size.value), -unit.shift);
    if (scaled >= 1.0) return fmt::format("{:.{}f} {}", scaled, scaled < 10 ? 2 : 1, unit.name);
  }
  return fmt::format("{} bytes", size.value);
}

Result<Bytes> ParseBytes(const std::string& text) {
  const std::optional<uint64_t> bytes = ReadBytes(text);
  if (!bytes) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "\"{}\" is not a size up to {} bytes; write 64MiB, 1.5GiB or plain bytes",
                     text, kMaxBytes);
  }
  return Bytes{*bytes};
}

Result<uint64_t> ParseWhole(const std::string& text, WholeRange range) {
  const char* const end = text.data() + text.size();
  uint64_t number = 0;
  const auto parsed = std::from_chars(text.data(), end, number);
  const bool whole = parsed.ec == std::errc() && parsed.ptr == end;
  if (whole && number >= range.low && number <= range.high) return number;
  constexpr size_t kMaxLength = 40;
  return MakeError(ErrorCode::kInvalidArgument, "\"{}{}\" is not a whole number from {} to {}",
                   text.substr(0, kMaxLength), text.size() > kMaxLength ? "..." : "", range.low,
                   range.high);
}

}  // namespace penstock
