#include "config/json_document.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/strict_json.h"

namespace penstock::config {
namespace {

using nlohmann::json;

/// "line:column" of character number `count`, from 1, of `text`.
std::string PositionOf(std::string_view text, size_t count) {
  const std::string_view before = text.substr(0, count == 0 ? 0 : count - 1);
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const size_t line_start = before.rfind('\n') + 1;  // 0 without one
  return fmt::format("{}:{}", line, before.size() - line_start + 1);
}

/// Returns the number of the last character before character number `count` of `text`, from 1, that
/// is not in spaces or comments, or 0. Up to there the parser has read the text without an error.
size_t PrecedingCharacter(std::string_view text, size_t count) {
  size_t last = 0;
  bool quoted = false;
  for (size_t i = 0; i + 1 < count && i < text.size(); ++i) {
    const std::string_view two = text.substr(i, 2);
    if (quoted) {
      quoted = text[i] != '"';
      if (text[i] == '\\') ++i;
    } else if (two == "//" || two == "/*") {
      const size_t end = two == "//" ? text.find('\n', i) : text.find("*/", i + 2);
      if (end == std::string_view::npos) break;
      i = two == "//" ? end : end + 1;
      continue;
    } else if (text[i] == ' ' || text[i] == '\t' || text[i] == '\r' || text[i] == '\n') {
      continue;
    } else {
      quoted = text[i] == '"';
    }
    last = i + 1;
  }
  return last;
}

/// Says where a comma stands before the end of an object or a list, if that is the fault.
std::optional<Error> CommaBeforeEnd(const std::string& name, const std::string& text,
                                    const JsonFault& fault) {
  if (fault.byte == 0 || fault.byte > text.size()) return std::nullopt;
  const char end = text[fault.byte - 1];
  if (end != '}' && end != ']') return std::nullopt;
  const size_t before = PrecedingCharacter(text, fault.byte);
  if (before == 0 || text[before - 1] != ',') return std::nullopt;
  return MakeError(ErrorCode::kInvalidArgument,
                   "{}:{}: not valid JSON: a comma before {}; remove it", name,
                   PositionOf(text, before), end);
}

Error Refusal(const std::string& name, const std::string& text, const JsonFault& fault) {
  switch (fault.kind) {
    case JsonFault::Kind::kSyntax:
      if (const auto comma = CommaBeforeEnd(name, text, fault)) return *comma;
      break;
    case JsonFault::Kind::kUnreadable:
      break;
    case JsonFault::Kind::kTooDeep:
      return MakeError(ErrorCode::kInvalidArgument, "{}:{}: nested deeper than {} levels", name,
                       fault.line, kDeepestJson);
    case JsonFault::Kind::kDuplicateKey:
      return MakeError(ErrorCode::kInvalidArgument,
                       "{}:{}: duplicate key {} (first on line {}); keep one of them", name,
                       fault.line, json(fault.path).dump(), fault.first_line);
  }
  return MakeError(ErrorCode::kInvalidArgument, "{}:{}: not valid JSON: {}", name,
                   PositionOf(text, fault.byte), fault.reason);
}

void MergeInto(json& target, json&& source) {
  if (!target.is_object() || !source.is_object()) {
    target = std::move(source);
    return;
  }
  for (auto& [key, value] : source.items()) MergeInto(target[key], std::move(value));
}

/// "a.b.c" as a, b and c.
std::vector<std::string> KeysOf(const std::string& path) {
  std::vector<std::string> keys;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('.', begin), path.size());
    keys.push_back(path.substr(begin, end - begin));
    begin = end + 1;
  }
  return keys;
}

/// The object around the key at the end of `keys`; null where something else is in the way.
/// `make`: makes objects where there is nothing or null.
json* Around(json& root, const std::vector<std::string>& keys, bool make) {
  json* at = &root;
  for (size_t i = 0; i + 1 < keys.size(); ++i) {
    const auto found = at->find(keys[i]);
    const bool missing = found == at->end() || found->is_null();
    if (!missing && !found->is_object()) return nullptr;
    if (missing && !make) return at;
    at = missing ? &((*at)[keys[i]] = json::object()) : &*found;
  }
  return at;
}

}  // namespace

bool JsonDocument::Set(const std::string& path, const json& value, const std::string& where) {
  const std::vector<std::string> keys = KeysOf(path);
  if (Around(root_, keys, /*make=*/false) == nullptr) return false;
  (*Around(root_, keys, /*make=*/true))[keys.back()] = value;
  if (!where.empty()) positions_[path] = where;
  return true;
}

void JsonDocument::Move(const std::string& from, const std::string& to) {
  const std::vector<std::string> keys = KeysOf(from);
  json* around = Around(root_, keys, /*make=*/false);
  PENSTOCK_CHECK(around != nullptr && around->contains(keys.back()));
  json moved = std::move((*around)[keys.back()]);
  around->erase(keys.back());
  const std::vector<std::string> target = KeysOf(to);
  MergeInto((*Around(root_, target, /*make=*/true))[target.back()], std::move(moved));
  std::map<std::string, std::string> positions;
  for (const auto& [path, where] : positions_) {
    if (path == from || path.starts_with(from + ".")) {
      positions.emplace(to + path.substr(from.size()), where);
    }
  }
  positions_.merge(positions);
}

Status JsonDocument::Merge(const std::string& name, const std::string& text) {
  json parsed;
  JsonLines lines;
  const std::optional<JsonFault> fault =
      ParseStrictly(text, {.comments = true, .lines = &lines}, &parsed);
  if (fault) return Refusal(name, text, *fault);
  if (!parsed.is_object()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "{}: the configuration must be a JSON object, not {}", name,
                     parsed.type_name());
  }
  for (const auto& [path, line] : lines) {
    positions_[path] = fmt::format("{}:{}", name, line);
  }
  MergeInto(root_, std::move(parsed));
  return {};
}

std::string JsonDocument::Where(const std::string& path) const {
  std::string prefix = path;
  while (!prefix.empty()) {
    if (const auto found = positions_.find(prefix); found != positions_.end()) {
      return found->second + ": ";
    }
    const size_t dot = prefix.rfind('.');
    prefix.resize(dot == std::string::npos ? 0 : dot);
  }
  return {};
}

}  // namespace penstock::config
