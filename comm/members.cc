#include "comm/members.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace penstock::comm {

std::string RankName(uint32_t rank, const Member& member) {
  return fmt::format("rank {} (host {}, pid {})", rank, member.host, member.pid);
}

std::string RankList(const std::vector<uint32_t>& ranks) {
  constexpr size_t kNamed = 8;
  const size_t named = std::min(ranks.size(), kNamed);
  const std::string first =
      fmt::to_string(fmt::join(ranks.begin(), ranks.begin() + static_cast<ptrdiff_t>(named), ", "));
  if (named < ranks.size()) return fmt::format("ranks {} and {} more", first, ranks.size() - named);
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", first);
}

std::string OneLine(std::string_view text, size_t most) {
  if (text.size() > most) {
    while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xC0U) == 0x80U) --most;
    text = text.substr(0, most);
  }
  std::string line(text);
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = ' ';
  }
  return line;
}

}  // namespace penstock::comm
