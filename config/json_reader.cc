#include "config/json_reader.h"

#include <algorithm>

#include "base/edit_distance.h"
#include "config/json_section.h"

namespace penstock::config {
namespace {

/// Keys further away than this are not suggested.
constexpr size_t kMaxDistance = 4;

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
  const Unknown& unknown = unknown_.front();
  return MakeError(ErrorCode::kInvalidArgument, "{}unknown key \"{}\"; {}",
                   document_.Where(unknown.path), ShowPath(unknown.path), Suggestion(unknown));
}

std::string JsonReader::Suggestion(const Unknown& unknown) const {
  if (known_.contains(unknown.path)) return "write it as objects, one in the other";
  const std::string* nearest = nullptr;
  const std::string* elsewhere = nullptr;
  size_t best = std::min(unknown.key.size() / 3 + 1, kMaxDistance);
  for (const std::string& path : known_) {
    const auto [parent, key] = SplitPath(path);
    if (key == unknown.key) elsewhere = &path;
    if (parent != unknown.parent) continue;
    const size_t distance = Distance(key, unknown.key);
    if (distance < best || (distance == best && nearest == nullptr)) {
      best = distance;
      nearest = &path;
    }
  }
  if (nearest == nullptr) nearest = elsewhere;
  if (nearest != nullptr) return fmt::format("did you mean \"{}\"?", *nearest);
  return "docs/config.md lists the known ones";
}

}  // namespace penstock::config
