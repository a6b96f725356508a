#include "train/launch/hostfile.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>

#include "base/units.h"
#include "train/launch/this_host.h"

namespace penstock::train {
namespace {

constexpr std::string_view kBlanks = " \t\r\v\f";
constexpr std::string_view kSlots = "slots=";

/// The form of a line, for messages.
constexpr const char* kExample = "a line names a host and its slots, as in \"worker1 slots=8\"";

/// A part of the file as a message can show it: short, and without control characters.
std::string Shown(std::string_view text) {
  constexpr size_t kMaxShown = 60;
  std::string shown(text.substr(0, kMaxShown));
  for (char& c : shown) {
    if (static_cast<unsigned char>(c) < ' ' || c == '\x7f') c = '?';
  }
  return text.size() > kMaxShown ? shown + "..." : shown;
}

std::vector<std::string_view> Words(std::string_view line) {
  std::vector<std::string_view> words;
  size_t begin = line.find_first_not_of(kBlanks);
  while (begin != std::string_view::npos) {
    const size_t end = std::min(line.find_first_of(kBlanks, begin), line.size());
    words.push_back(line.substr(begin, end - begin));
    begin = line.find_first_not_of(kBlanks, end);
  }
  return words;
}

/// A name or an address. A leading dash would make it an option of ssh.
bool IsHostName(std::string_view name) {
  constexpr std::string_view kAllowed =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_:%";
  return !name.empty() && name.front() != '-' &&
         name.find_first_not_of(kAllowed) == std::string_view::npos;
}

/// Reads the words of a line that is not empty; the error does not name the line.
Result<HostSlots> ParseHost(const std::vector<std::string_view>& words) {
  const std::string_view name = words[0];
  if (name.find('@') != std::string_view::npos) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "\"{}\" names a user; write the host alone, and the user into ~/.ssh/config",
                     Shown(name));
  }
  if (!IsHostName(name)) {
    return MakeError(ErrorCode::kInvalidArgument, "\"{}\" is no name of a host; {}", Shown(name),
                     kExample);
  }
  if (words.size() == 1) {
    return MakeError(ErrorCode::kInvalidArgument, "{} has no slots; {}", Shown(name), kExample);
  }
  if (!words[1].starts_with(kSlots) || words.size() > 2) {
    return MakeError(ErrorCode::kInvalidArgument, "\"{}\" is not understood; {}",
                     Shown(words[words[1].starts_with(kSlots) ? 2 : 1]), kExample);
  }
  const Result<uint64_t> slots =
      ParseWhole(std::string(words[1].substr(kSlots.size())), {.low = 1, .high = kMaxRanks});
  if (!slots.ok()) {
    return MakeError(ErrorCode::kInvalidArgument, "slots: {}; leave out hosts without slots",
                     Shown(slots.error().message));
  }
  return HostSlots{.name = std::string(name), .slots = static_cast<uint32_t>(*slots)};
}

}  // namespace

Result<std::vector<HostSlots>> ParseHostfile(std::string_view text, const std::string& path,
                                             const std::string& own) {
  std::vector<HostSlots> hosts;
  std::map<std::string, std::pair<std::string, size_t>> places;  // by HostKey: name and line
  size_t number = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    const std::vector<std::string_view> words = Words(line.substr(0, line.find('#')));
    if (words.empty()) continue;
    Result<HostSlots> host = ParseHost(words);
    if (!host.ok()) {
      return MakeError(ErrorCode::kInvalidArgument, "{}:{}: {}", path, number,
                       host.error().message);
    }
    const auto [place, is_new] = places.try_emplace(HostKey(host->name, own), host->name, number);
    if (!is_new) {
      const auto& [name, line_before] = place->second;
      return MakeError(ErrorCode::kInvalidArgument,
                       "{}:{}: {} stands in line {} already{}; write one line with all its slots",
                       path, number, host->name, line_before,
                       name == host->name ? "" : ", as " + name);
    }
    hosts.push_back(*std::move(host));
  }
  if (!hosts.empty()) return hosts;
  return MakeError(ErrorCode::kInvalidArgument, "{} names no host; {}", path, kExample);
}

Result<std::vector<RankPlace>> PlaceRanks(uint32_t ranks, std::span<const HostSlots> hosts,
                                          const std::string& path) {
  uint64_t slots = 0;
  for (const HostSlots& host : hosts) slots += host.slots;
  if (ranks > slots) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "{} has {} slots, and --ranks asks for {}; add hosts or slots, or lower "
                     "--ranks",
                     path, slots, ranks);
  }
  std::vector<RankPlace> places;
  for (uint32_t host = 0; places.size() < ranks; ++host) {
    const uint32_t left = ranks - static_cast<uint32_t>(places.size());
    const uint32_t here = std::min(left, hosts[host].slots);
    for (uint32_t local = 0; local < here; ++local) {
      places.push_back({.rank = static_cast<uint32_t>(places.size()),
                        .host = host,
                        .local_rank = local,
                        .local_size = here});
    }
  }
  return places;
}

}  // namespace penstock::train
