#include "config/json_document.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

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

/// The library's message without its tag and position, on one line of bounded length.
std::string Explain(std::string_view what) {
  for (const std::string_view mark : {"] ", "parse error at line ", ": "}) {
    const size_t at = what.find(mark);
    if (at == std::string_view::npos) break;
    what.remove_prefix(at + mark.size());
  }
  constexpr size_t kMaxLength = 300;
  return fmt::format("{}{}", what.substr(0, kMaxLength), what.size() > kMaxLength ? "..." : "");
}

Error Refusal(const std::string& name, const std::string& text, const JsonFault& fault) {
  switch (fault.kind) {
    case JsonFault::Kind::kSyntax:
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
                   PositionOf(text, fault.byte), Explain(fault.parser));
}

void MergeInto(json& target, json&& source) {
  if (!target.is_object() || !source.is_object()) {
    target = std::move(source);
    return;
  }
  for (auto& [key, value] : source.items()) MergeInto(target[key], std::move(value));
}

}  // namespace

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
