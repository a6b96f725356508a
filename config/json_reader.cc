#include "config/json_reader.h"

#include <algorithm>

#include "base/edit_distance.h"
#include "config/json_section.h"

namespace penstock::config {
namespace {

/// Keys further away than this are not suggested.
constexpr size_t kMaxDistance = 4;
/// Nor further than this, if the key is known in another section.
constexpr size_t kTypo = 1;

/// The edit distance, but that a long part of a key is as near as may be.
size_t Distance(std::string_view a, std::string_view b) {
  constexpr size_t kLongPart = 6;
  if (std::min(a.size(), b.size()) >= kLongPart &&
      (a.find(b) != std::string_view::npos || b.find(a) != std::string_view::npos)) {
    return std::min(a.size() > b.size() ? a.size() - b.size() : b.size() - a.size(), kMaxDistance);
  }
  if (a.size() > b.size() + kMaxDistance || b.size() > a.size() + kMaxDistance) {
    return kMaxDistance + 1;
  }
  return EditDistance(a, b);
}

std::pair<std::string, std::string> SplitPath(const std::string& path) {
  const size_t dot = path.rfind('.');
  if (dot == std::string::npos) return {"", path};
  return {path.substr(0, dot), path.substr(dot + 1)};
}

}  // namespace

void JsonReader::Read(const std::function<void(JsonSection&)>& read) {
  JsonSection root(*this, document_.root(), "");
  read(root);
  root.Finish();
}

void JsonReader::Fail(const std::string& path, const std::string& message) {
  if (error_) return;
  error_ = MakeError(ErrorCode::kInvalidArgument, "{}{}: {}", document_.Where(path), ShowPath(path),
                     message);
}

Status JsonReader::status() const {
  if (error_) return *error_;
  if (unknown_.empty()) return {};
  return MakeError(ErrorCode::kInvalidArgument, "{}", Describe(unknown_.front()));
}

std::vector<std::string> JsonReader::UnknownKeys() const {
  std::vector<std::string> texts;
  for (const Unknown& unknown : unknown_) texts.push_back(Describe(unknown));
  return texts;
}

std::string JsonReader::Describe(const Unknown& unknown) const {
  return fmt::format("{}unknown key \"{}\"; {}", document_.Where(unknown.path),
                     ShowPath(unknown.path), Suggestion(unknown));
}

std::vector<std::string> JsonReader::PlacesOf(const std::string& key) const {
  std::vector<std::string> places;
  for (const std::string& path : known_) {
    if (SplitPath(path).second != key) continue;
    const auto refused = refused_.find(path);
    const std::string& place = refused == refused_.end() ? path : refused->second;
    if (!place.empty()) places.push_back(place);
  }
  return places;
}

std::string JsonReader::Nearest(const Unknown& unknown, size_t furthest) const {
  std::string nearest;
  size_t best = furthest;
  for (const std::string& path : known_) {
    const auto [parent, key] = SplitPath(path);
    if (parent != unknown.parent || refused_.contains(path)) continue;
    const size_t distance = Distance(key, unknown.key);
    if (distance < best || (distance == best && nearest.empty())) {
      best = distance;
      nearest = path;
    }
  }
  return nearest;
}

std::string JsonReader::Suggestion(const Unknown& unknown) const {
  if (known_.contains(unknown.path)) return "write it as objects, one in the other";
  // A key that is known elsewhere is rather in the wrong section than misspelled.
  std::vector<std::string> meant = PlacesOf(unknown.key);
  const size_t furthest = meant.empty() ? kMaxDistance : kTypo;
  const std::string nearest = Nearest(unknown, std::min(unknown.key.size() / 3 + 1, furthest));
  if (!nearest.empty()) meant.insert(meant.begin(), nearest);
  if (meant.empty()) return "docs/config.md lists the known ones";
  std::string list;
  for (size_t i = 0; i < meant.size(); ++i) {
    const char* before = i == 0 ? "" : i + 1 < meant.size() ? ", " : " or ";
    list += fmt::format("{}\"{}\"", before, meant[i]);
  }
  return fmt::format("did you mean {}?", list);
}

}  // namespace penstock::config
