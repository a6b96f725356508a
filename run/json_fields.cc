#include "run/json_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/strict_json.h"
#include "run/run_info.h"

namespace penstock::train {

Error DamagedInfo(const Folder& run, const std::string& why) {
  return MakeError(ErrorCode::kCorruption, "{} is damaged: {}", run.PathOf(kInfoName), why);
}

Result<JsonFields> JsonFields::Of(const nlohmann::json& value, const std::string& where,
                                  const Folder& run) {
  if (value.is_object()) return JsonFields(value, where, run);
  return DamagedInfo(run, fmt::format("{} is {}, not an object", where, Excerpt(value)));
}

std::string JsonFields::PathOf(std::string_view key) const { return JoinJsonPath(where_, key); }

Error JsonFields::Wrong(const char* key, const nlohmann::json& value, const char* expected) const {
  return DamagedInfo(run_, fmt::format("{} is {}, not {}", PathOf(key), Excerpt(value), expected));
}

Result<const nlohmann::json*> JsonFields::Value(const char* key) const {
  const auto found = object_.find(key);
  if (found == object_.end()) return DamagedInfo(run_, fmt::format("it lacks {}", PathOf(key)));
  return &*found;
}

Result<std::string> JsonFields::Text(const char* key) const {
  PENSTOCK_ASSIGN(const nlohmann::json* const value, Value(key));
  if (!value->is_string()) return Wrong(key, *value, "a text");
  return value->get<std::string>();
}

Result<std::string> JsonFields::Name(const char* key) const {
  PENSTOCK_ASSIGN(std::string text, Text(key));
  if (text.empty()) return DamagedInfo(run_, fmt::format("{} is empty", PathOf(key)));
  return text;
}

Result<bool> JsonFields::Bool(const char* key) const {
  PENSTOCK_ASSIGN(const nlohmann::json* const value, Value(key));
  if (!value->is_boolean()) return Wrong(key, *value, "true or false");
  return value->get<bool>();
}

Result<uint64_t> JsonFields::Whole(const char* key) const {
  PENSTOCK_ASSIGN(const nlohmann::json* const value, Value(key));
  if (!value->is_number_unsigned()) return Wrong(key, *value, "a whole number of at most 64 bits");
  return value->get<uint64_t>();
}

Result<JsonFields> JsonFields::Object(const char* key) const {
  PENSTOCK_ASSIGN(const nlohmann::json* const value, Value(key));
  return Of(*value, PathOf(key), run_);
}

Result<std::vector<JsonFields>> JsonFields::Objects(const char* key) const {
  PENSTOCK_ASSIGN(const nlohmann::json* const value, Value(key));
  if (!value->is_array()) return Wrong(key, *value, "a list");
  std::vector<JsonFields> objects;
  for (const nlohmann::json& entry : *value) {
    PENSTOCK_ASSIGN(JsonFields fields, Of(entry, PathOf(key) + ".[]", run_));
    objects.push_back(std::move(fields));
  }
  return objects;
}

Result<std::vector<std::string>> JsonFields::Texts(const char* key) const {
  PENSTOCK_ASSIGN(const nlohmann::json* const value, Value(key));
  if (!value->is_array()) return Wrong(key, *value, "a list");
  std::vector<std::string> texts;
  for (const nlohmann::json& entry : *value) {
    if (!entry.is_string()) return Wrong(key, *value, "a list of texts");
    texts.push_back(entry.get<std::string>());
  }
  return texts;
}

Status JsonFields::CheckKeys(std::initializer_list<std::string_view> known) const {
  for (const auto& [key, value] : object_.items()) {
    if (std::ranges::find(known, key) != known.end()) continue;
    return DamagedInfo(run_, fmt::format("{} is no key of it", Excerpt(PathOf(key))));
  }
  return {};
}

}  // namespace penstock::train
