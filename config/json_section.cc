#include "config/json_section.h"

#include <algorithm>
#include <cmath>

namespace penstock::config {

using nlohmann::json;

namespace {

bool IsKind(const json& value, unsigned kinds) {
  return ((kinds & kBool) != 0 && value.is_boolean()) ||
         ((kinds & kInteger) != 0 && AsInteger(value).has_value()) ||
         ((kinds & kNumber) != 0 && value.is_number()) ||
         ((kinds & kText) != 0 && value.is_string()) ||
         ((kinds & kList) != 0 && value.is_array()) ||
         ((kinds & kObject) != 0 && value.is_object()) || ((kinds & kNull) != 0 && value.is_null());
}

std::string Describe(unsigned kinds) {
  constexpr std::pair<unsigned, std::string_view> kNames[] = {
      {kBool, "true or false"}, {kInteger, "an integer"}, {kNumber, "a number"},
      {kText, "a string"},      {kList, "a list"},        {kObject, "an object"},
      {kNull, "null"}};
  std::string text;
  for (const auto& [kind, name] : kNames) {
    if ((kinds & kind) == 0) continue;
    if (!text.empty()) text += " or ";
    text += name;
  }
  return text;
}

/// Whether the value is one of `rule.off`.
bool Allows(const JsonRule& rule, const json& value) {
  const json allowed = json::parse(rule.off);
  return std::ranges::find(allowed, value) != allowed.end();
}

/// The path of an "enabled": true below `value`, or nothing.
std::optional<std::string> FindEnabled(const json& value, const std::string& path) {
  if (!value.is_structured()) return std::nullopt;
  for (const auto& [key, member] : value.items()) {
    const std::string member_path = JoinJsonPath(path, key);
    if (value.is_object() && key == "enabled" && member != json(false)) return member_path;
    if (auto found = FindEnabled(member, member_path)) return found;
  }
  return std::nullopt;
}

}  // namespace

std::string Show(const json& value) {
  constexpr size_t kMaxLength = 60;
  std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true);
  if (text.size() > kMaxLength) text = text.substr(0, kMaxLength) + "...";
  return text;
}

std::string ShowPath(const std::string& path) {
  constexpr size_t kMaxLength = 200;
  const std::string text = json(path).dump(-1, ' ', /*ensure_ascii=*/true);
  const std::string bare = text.substr(1, text.size() - 2);
  return bare.size() > kMaxLength ? bare.substr(0, kMaxLength) + "..." : bare;
}

std::optional<int64_t> AsInteger(const json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
    return static_cast<int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  if (!value.is_number_float()) return std::nullopt;
  const auto number = value.get<double>();
  if (!(number >= -0x1p63 && number < 0x1p63) || number != std::floor(number)) return std::nullopt;
  return static_cast<int64_t>(number);
}

const json* JsonSection::Find(std::string_view key) {
  reader_.known_.insert(PathOf(key));
  asked_.emplace(key);
  const auto found = object_.find(std::string(key));
  return found == object_.end() ? nullptr : &*found;
}

bool JsonSection::TakeAuto(std::string_view key, const json& value, const json& fallback,
                           const char* source) {
  if (value != json("auto")) return false;
  reader_.AddAutomatic({.path = PathOf(key), .value = Show(fallback), .source = source});
  return true;
}

void JsonSection::FailType(std::string_view key, unsigned kinds, const json& value) {
  const bool quoted = value == json("true") || value == json("false");
  Fail(key, fmt::format("expected {}, got {}{}", Describe(kinds), Show(value),
                        quoted && (kinds & kBool) != 0 ? "; remove the quotes" : ""));
}

bool JsonSection::Bool(std::string_view key, bool fallback) {
  const json* value = Find(key);
  if (value == nullptr || TakeAuto(key, *value, fallback)) return fallback;
  if (value->is_boolean()) return value->get<bool>();
  FailType(key, kBool, *value);
  return fallback;
}

std::optional<int64_t> JsonSection::ToInteger(std::string_view key, const json& value,
                                              IntegerRange range) {
  if (!value.is_number()) {
    FailType(key, kInteger, value);
    return std::nullopt;
  }
  const std::optional<int64_t> number = AsInteger(value);
  if (number && *number >= range.low && *number <= range.high) return number;
  Fail(key, fmt::format("{} is not an integer in [{}, {}]", Show(value), range.low, range.high));
  return std::nullopt;
}

std::optional<double> JsonSection::ToNumber(std::string_view key, const json& value,
                                            NumberRange range) {
  if (!value.is_number()) {
    FailType(key, kNumber, value);
    return std::nullopt;
  }
  const auto number = value.get<double>();
  if (number >= range.low && number <= range.high) return number + 0.0;  // -0 is 0
  const bool bounded = range.high < std::numeric_limits<double>::max();
  Fail(key, bounded ? fmt::format("{} is not in [{}, {}]", Show(value), range.low, range.high)
                    : fmt::format("{} is not in [{}, infinity)", Show(value), range.low));
  return std::nullopt;
}

int64_t JsonSection::Integer(std::string_view key, int64_t fallback, IntegerRange range) {
  const json* value = Find(key);
  if (value == nullptr || TakeAuto(key, *value, fallback)) return fallback;
  return ToInteger(key, *value, range).value_or(fallback);
}

double JsonSection::Number(std::string_view key, double fallback, NumberRange range) {
  const json* value = Find(key);
  if (value == nullptr || TakeAuto(key, *value, fallback)) return fallback;
  return ToNumber(key, *value, range).value_or(fallback);
}

std::optional<int64_t> JsonSection::OptionalInteger(std::string_view key, IntegerRange range) {
  const json* value = Find(key);
  if (value == nullptr || value->is_null() || TakeAuto(key, *value)) return std::nullopt;
  return ToInteger(key, *value, range);
}

std::optional<double> JsonSection::OptionalNumber(std::string_view key, NumberRange range) {
  const json* value = Find(key);
  if (value == nullptr || value->is_null() || TakeAuto(key, *value)) return std::nullopt;
  return ToNumber(key, *value, range);
}

std::optional<std::string> JsonSection::OptionalText(std::string_view key) {
  const json* value = Find(key);
  if (value == nullptr || value->is_null() || TakeAuto(key, *value)) return std::nullopt;
  if (value->is_string()) return value->get<std::string>();
  FailType(key, kText | kNull, *value);
  return std::nullopt;
}

std::optional<size_t> JsonSection::ChoiceIndex(std::string_view key,
                                               const std::vector<std::string_view>& names,
                                               std::string_view fallback) {
  const json* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) {
    for (size_t i = 0; i < names.size(); ++i) {
      if (value->get_ref<const std::string&>() == names[i]) return i;
    }
  }
  if (TakeAuto(key, *value, fallback)) return std::nullopt;
  std::string list;
  for (const std::string_view name : names) list += fmt::format(" \"{}\"", name);
  Fail(key, fmt::format("{} is not one of{}", Show(*value), list));
  return std::nullopt;
}

void JsonSection::Object(std::string_view key, const std::function<void(JsonSection&)>& read) {
  static const json kEmpty = json::object();
  const json* value = Find(key);
  if (value == nullptr || value->is_null()) value = &kEmpty;
  if (!value->is_object()) {
    FailType(key, kObject, *value);
    value = &kEmpty;
  }
  JsonSection section(reader_, *value, PathOf(key));
  read(section);
  section.Finish();
}

const json* JsonSection::Take(const JsonRule& rule) {
  const json* value = Find(rule.name);
  if (value == nullptr) return nullptr;
  const bool may_be_auto = (rule.kinds & ~unsigned{kObject | kNull}) != 0;
  if (may_be_auto && *value == json("auto")) return nullptr;
  if (IsKind(*value, rule.kinds)) return value;
  FailType(rule.name, rule.kinds, *value);
  return nullptr;
}

void JsonSection::Superseded(Instead instead, JsonRules rules) {
  for (const JsonRule& rule : rules) {
    const json* value = Find(rule.name);
    if (value == nullptr || (!rule.off.empty() && Allows(rule, *value))) continue;
    reader_.superseded_.push_back({PathOf(rule.name), instead});
    Take(rule);
  }
}

void JsonSection::Refuse(std::string_view key, const std::string& message, std::string meant) {
  const json* value = Find(key);
  reader_.refused_[PathOf(key)] = std::move(meant);
  if (value != nullptr) Fail(key, message);
}

void JsonSection::Inert(JsonRules rules) {
  for (const JsonRule& rule : rules) Take(rule);
}

void JsonSection::Off(JsonRules rules) {
  for (const JsonRule& rule : rules) {
    const json* value = Find(rule.name);
    if (value == nullptr) continue;
    const json allowed = json::parse(rule.off);
    if (Allows(rule, *value)) continue;
    if (Take(rule) == nullptr) {
      TakeAuto(rule.name, *value, allowed.at(0));
      continue;
    }
    std::string list;
    for (const json& one : allowed) {
      list += fmt::format("{}{}", list.empty() ? "" : " or ", Show(one));
    }
    Fail(rule.name, fmt::format("{} is not implemented; {}", Show(*value),
                                rule.hint.empty() ? "set it to " + list + ", or remove it"
                                                  : std::string(rule.hint)));
  }
}

void JsonSection::DisabledTree(std::string_view key) {
  const json* value = Take({key, kObject | kNull});
  if (value == nullptr) return;
  if (const auto enabled = FindEnabled(*value, PathOf(key))) {
    reader_.Fail(*enabled, "this feature is not implemented; set it to false, or remove it");
  }
}

void JsonSection::Finish() {
  for (const auto& [key, value] : object_.items()) {
    if (!asked_.contains(key)) reader_.unknown_.push_back({PathOf(key), path_, key});
  }
}

}  // namespace penstock::config
