#include "tools/cli/cli_checks.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string>
#include <system_error>
#include <utility>

#include "base/result.h"

namespace penstock::train {

CLI::Validator SizeCheck() {
  return CLI::Validator(
      [](std::string& text) {
        const Result<Bytes> size = ParseBytes(text);
        return size.ok() ? std::string() : size.error().message;
      },
      "SIZE");
}

CLI::Validator WholeCheck(WholeRange range) {
  return CLI::Validator(
      [range](std::string& text) {
        const Result<uint64_t> number = ParseWhole(text, range);
        return number.ok() ? std::string() : number.error().message;
      },
      "N");
}

Result<double> ParseReal(const std::string& text, RealRange range) {
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto [read, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || read != end || !std::isfinite(number)) {
    return MakeError(ErrorCode::kInvalidArgument, "\"{}\" is not a number like 5e-5", text);
  }
  if (number < range.low || number > range.high || (range.below && number == range.high)) {
    const bool bounded = range.high < std::numeric_limits<double>::max();
    return MakeError(ErrorCode::kInvalidArgument, "{} is not in [{}, {}{}", text, range.low,
                     bounded ? fmt::format("{}", range.high) : "infinity",
                     bounded && !range.below ? "]" : ")");
  }
  return number + 0.0;  // -0 is 0
}

CLI::Validator RealCheck(RealRange range) {
  return CLI::Validator(
      [range](std::string& text) {
        const Result<double> number = ParseReal(text, range);
        return number.ok() ? std::string() : number.error().message;
      },
      "NUMBER");
}

CLI::Validator OneOf(std::vector<std::string> words) {
  const std::string listed = fmt::format("{}", fmt::join(words, ","));
  return CLI::Validator(
      [words = std::move(words)](std::string& text) {
        if (std::ranges::find(words, text) != words.end()) return std::string();
        return words.size() == 1
                   ? fmt::format("\"{}\" is not {}", text, words.front())
                   : fmt::format("\"{}\" is none of {}", text, fmt::join(words, ", "));
      },
      "{" + listed + "}");
}

CLI::Validator NameCheck() {
  return CLI::Validator(
      [](std::string& text) {
        return text.empty() ? std::string("\"\" names nothing; give a path or a name")
                            : std::string();
      },
      "");
}

std::optional<Bytes> SizeOrNone(const std::string& text) {
  if (text.empty()) return std::nullopt;
  return ParseBytes(text).value();  // checked by SizeCheck
}

std::optional<uint64_t> NumberOrNone(const std::string& text) {
  if (text.empty()) return std::nullopt;
  return ParseWhole(text).value();  // checked by WholeCheck
}

}  // namespace penstock::train
