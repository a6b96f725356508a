#include "train/launch/rank_lines.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace penstock::train {
namespace {

constexpr std::string_view kNotice = "penstock: ";
constexpr std::string_view kError = "penstock: error: ";
constexpr std::string_view kWarning = "penstock: warning: ";
/// Bounds memory: further errors are not recognised as repetitions.
constexpr size_t kMaxErrors = 256;

}  // namespace

std::string RankLines::Add(uint32_t rank, std::string_view bytes) {
  std::string lines;
  std::string& begun = begun_[rank];
  while (!bytes.empty()) {
    const size_t end = std::min(bytes.find('\n'), bytes.size());
    const size_t taken = std::min(end, kMaxLine - begun.size());
    begun.append(bytes.substr(0, taken));
    bytes.remove_prefix(taken);
    const bool ended = !bytes.empty() && bytes.front() == '\n';
    if (ended) bytes.remove_prefix(1);
    if (ended || begun.size() == kMaxLine) lines += TakeLine(rank);
  }
  return lines;
}

std::string RankLines::Finish(uint32_t rank) { return begun_[rank].empty() ? "" : TakeLine(rank); }

std::string RankLines::TakeLine(uint32_t rank) {
  const std::string line = std::exchange(begun_[rank], {});
  const bool is_error = line.starts_with(kError);
  if (line.starts_with(kNotice) && !is_error && !line.starts_with(kWarning)) return "";
  if (is_error && errors_.contains(line)) return "";
  if (is_error && errors_.size() < kMaxErrors) errors_.insert(line);
  return fmt::format("rank {}: {}\n", rank, line);
}

}  // namespace penstock::train
