#include "base/message_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

namespace penstock {
namespace {

/// What stays of a long word, and of a long message, at each end.
constexpr size_t kWordBegin = 256;
constexpr size_t kWordEnd = 64;
constexpr size_t kMessageBegin = 6144;
constexpr size_t kMessageEnd = 1536;

bool Continues(char c) { return (static_cast<unsigned char>(c) & 0xC0U) == 0x80U; }

struct Character {
  size_t bytes = 0;  ///< 0: the text does not begin with one
  uint32_t code = 0;
};

/// The character at the beginning of `text`, if that is UTF-8 (RFC 3629).
Character FirstOf(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  if (first < 0x80) return {.bytes = 1, .code = first};
  const size_t bytes = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < bytes) return {};
  uint32_t code = first & (0x7FU >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    if (!Continues(text[i])) return {};
    code = code << 6U | (static_cast<unsigned char>(text[i]) & 0x3FU);
  }
  const uint32_t least = bytes == 4 ? 0x10000 : bytes == 3 ? 0x800 : 0x80;
  const bool surrogate = code >= 0xD800 && code <= 0xDFFF;
  if (code < least || code > 0x10FFFF || surrogate) return {};
  return {.bytes = bytes, .code = code};
}

/// Whether it is a control of either set (C0, C1) that is no layout.
bool IsControl(uint32_t code) {
  return (code < 0x20 && code != '\n' && code != '\t') || (code >= 0x7F && code < 0xA0);
}

/// The first of two halves of a text ends, and the second begins, where a character does.
std::string Shortened(std::string_view text, size_t begin, size_t end) {
  while (begin > 0 && Continues(text[begin])) --begin;
  size_t rest = text.size() - end;
  while (rest < text.size() && Continues(text[rest])) ++rest;
  return fmt::format("{}…({} bytes)…{}", text.substr(0, begin), text.size(), text.substr(rest));
}

}  // namespace

std::string Printable(std::string_view text) {
  std::string printable;
  printable.reserve(text.size());
  while (!text.empty()) {
    const Character first = FirstOf(text);
    if (first.bytes == 0) {
      printable += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[0]));
    } else if (IsControl(first.code)) {
      printable += fmt::format("\\u{:04x}", first.code);
    } else {
      printable += text.substr(0, first.bytes);
    }
    text.remove_prefix(std::max<size_t>(first.bytes, 1));
  }
  return printable;
}

std::string MessageLine(std::string_view text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.remove_suffix(1);
  std::string line;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find_first_of(" \n\r\t", begin), text.size());
    const std::string word = Printable(text.substr(begin, end - begin));
    line += word.size() > kMaxMessageWord ? Shortened(word, kWordBegin, kWordEnd) : word;
    if (end < text.size()) line += ' ';
    begin = end + 1;
  }
  return line.size() > kMaxMessage ? Shortened(line, kMessageBegin, kMessageEnd) : line;
}

}  // namespace penstock
