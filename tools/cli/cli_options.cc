#include "tools/cli/cli_options.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <system_error>

namespace penstock::train {

Result<double> ParseReal(const std::string& text, RealRange range) {
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto [read, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || read != end || !std::isfinite(number)) {
    return MakeError(ErrorCode::kInvalidArgument, "\"{}\" is not a number like 5e-5", text);
  }
  const bool low = range.above ? number <= range.low : number < range.low;
  const bool high = range.below ? number >= range.high : number > range.high;
  if (low || high) {
    const bool bounded = range.high < std::numeric_limits<double>::max();
    return MakeError(ErrorCode::kInvalidArgument, "{} is not in {}{}, {}{}", text,
                     range.above ? "(" : "[", range.low,
                     bounded ? fmt::format("{}", range.high) : "infinity",
                     bounded && !range.below ? "]" : ")");
  }
  return number + 0.0;  // -0 is 0
}

Result<size_t> ParseWord(const std::string& text, const std::vector<std::string>& words) {
  const auto found = std::ranges::find(words, text);
  if (found != words.end()) return static_cast<size_t>(found - words.begin());
  return MakeError(ErrorCode::kInvalidArgument, "\"{}\" is {}{}", text,
                   words.size() == 1 ? "not " : "none of ", fmt::join(words, ", "));
}

CLI::Option* AddSize(CLI::App& command, const char* name, std::optional<Bytes>* size,
                     const char* help) {
  return AddValue<Bytes>(command, name, size, ParseBytes, help, "SIZE");
}

CLI::Validator NameCheck() {
  return {[](std::string& text) {
            return text.empty() ? std::string("\"\" names nothing; give a path or a name")
                                : std::string();
          },
          ""};
}

CLI::Option* AddNames(CLI::App& command, const char* name, std::vector<std::string>* names,
                      const char* help) {
  return AddName(command, name, names, help)
      ->expected(1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

}  // namespace penstock::train
