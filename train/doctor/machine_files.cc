#include "train/doctor/machine_files.h"

#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>

#include "base/files.h"
#include "base/result.h"
#include "base/units.h"

namespace penstock::train {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxRead = 1 << 20;

std::string Trimmed(const std::string& text) {
  constexpr const char* kBlanks = " \t\r\n";
  const size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

}  // namespace

bool MachineFiles::Exists(const std::string& path) const {
  std::error_code ignored;
  return fs::exists(fs::path(root_) / path, ignored);
}

std::optional<std::string> MachineFiles::Text(const std::string& path) const {
  std::error_code ignored;
  // A folder opens as a stream, but has no text.
  if (!fs::is_regular_file(fs::path(root_) / path, ignored)) return std::nullopt;
  std::ifstream in(fs::path(root_) / path, std::ios::binary);
  if (!in) return std::nullopt;
  std::string text(kMaxRead, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (in.bad()) return std::nullopt;
  text.resize(static_cast<size_t>(in.gcount()));
  return text;
}

std::optional<std::string> MachineFiles::Line(const std::string& path) const {
  const std::optional<std::string> text = Text(path);
  if (!text) return std::nullopt;
  std::string line = Trimmed(text->substr(0, text->find('\n')));
  return line.empty() ? std::nullopt : std::optional(std::move(line));
}

std::optional<uint64_t> MachineFiles::Number(const std::string& path) const {
  const std::optional<std::string> line = Line(path);
  if (!line) return std::nullopt;
  const Result<uint64_t> number = ParseWhole(*line);
  return number.ok() ? std::optional(*number) : std::nullopt;
}

std::vector<std::string> MachineFiles::Names(const std::string& folder) const {
  Result<std::vector<std::string>> names = NamesIn((fs::path(root_) / folder).string());
  return names.ok() ? *std::move(names) : std::vector<std::string>();
}

std::optional<std::string> MachineFiles::Field(const std::string& path,
                                               const std::string& key) const {
  const std::optional<std::string> text = Text(path);
  if (!text) return std::nullopt;
  std::istringstream lines(*text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(key)) continue;
    const std::string rest = line.substr(key.size());
    const size_t begin = rest.find_first_not_of(" \t");
    if (begin == std::string::npos) continue;
    if (rest[begin] == ':') return Trimmed(rest.substr(begin + 1));
    if (begin > 0) return Trimmed(rest);
  }
  return std::nullopt;
}

std::optional<uint64_t> CountOfList(const std::string& list) {
  uint64_t count = 0;
  std::istringstream ranges(list);
  for (std::string range; std::getline(ranges, range, ',');) {
    const size_t dash = range.find('-');
    const Result<uint64_t> first = ParseWhole(range.substr(0, dash));
    const Result<uint64_t> last =
        dash == std::string::npos ? first : ParseWhole(range.substr(dash + 1));
    if (!first.ok() || !last.ok() || *last < *first) return std::nullopt;
    count = SaturatingAdd(count, SaturatingAdd(*last - *first, 1));
  }
  return count == 0 ? std::nullopt : std::optional(count);
}

}  // namespace penstock::train
