#include "front/raw_json.h"

#include <cstddef>

namespace penstock::front {
namespace {

constexpr std::string_view kSpace = " \t\r\n";

/// Returns the end of the string that begins at `at`.
size_t EndOfString(std::string_view text, size_t at) {
  for (++at; text[at] != '"'; ++at) {
    if (text[at] == '\\') ++at;
  }
  return at + 1;
}

/// Returns the end of the value that begins at `at`.
size_t EndOfValue(std::string_view text, size_t at) {
  size_t depth = 0;
  while (at < text.size()) {
    const char c = text[at];
    if (c == '"') {
      at = EndOfString(text, at);
      continue;
    }
    const bool closes = c == '}' || c == ']';
    if (depth == 0 && (closes || c == ',')) break;
    if (c == '{' || c == '[') ++depth;
    if (closes) --depth;
    ++at;
  }
  return at;
}

}  // namespace

std::string_view RawValue(std::string_view object, std::string_view key) {
  size_t at = object.find('{') + 1;
  while (true) {
    at = object.find_first_of("\"}", at);
    if (at == std::string_view::npos || object[at] == '}') return {};
    const size_t end = EndOfString(object, at);
    const std::string_view name = object.substr(at + 1, end - at - 2);
    at = object.find_first_not_of(kSpace, object.find(':', end) + 1);
    const size_t behind = EndOfValue(object, at);
    if (name == key) {
      const std::string_view value = object.substr(at, behind - at);
      return value.substr(0, value.find_last_not_of(kSpace) + 1);
    }
    at = behind;
  }
}

}  // namespace penstock::front
