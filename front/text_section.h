// An object of a JSON text that a caller of the C interface gives, read strictly.
//
// Threads: any.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/strict_json.h"

namespace penstock::front {

using nlohmann::json;

/// One object of a text, read strictly. Keeps the first error.
class Section {
 public:
  /// `path`: the object's place in its text, as in "units[3]"; empty for the text itself.
  Section(const json& object, std::string name, std::string path, std::optional<Error>* error)
      : object_(object), name_(std::move(name)), path_(std::move(path)), error_(error) {
    if (!object_.is_object()) Fail("", "is no object");
  }

  const json* Find(const char* key) {
    known_.insert(key);
    if (!object_.is_object()) return nullptr;
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  std::string Text(const char* key) {
    const json* value = Find(key);
    if (value != nullptr && value->is_string() && !value->get_ref<const std::string&>().empty()) {
      return value->get<std::string>();
    }
    Fail(key, value == nullptr ? "is missing" : Is(*value, "no text"));
    return {};
  }
  uint64_t Number(const char* key, uint64_t fallback, uint64_t least, uint64_t most) {
    const json* value = Find(key);
    if (value == nullptr) return fallback;
    if (value->is_number_unsigned()) {
      const auto number = value->get<uint64_t>();
      if (number >= least && number <= most) return number;
    }
    Fail(key, Is(*value, fmt::format("no whole number from {} to {}", least, most)));
    return fallback;
  }
  bool Bool(const char* key, bool fallback) {
    const json* value = Find(key);
    if (value == nullptr) return fallback;
    if (!value->is_boolean()) Fail(key, Is(*value, "neither true nor false"));
    return value->is_boolean() && value->get<bool>();
  }
  /// Returns the elements of a list; none if it is absent.
  std::vector<json> List(const char* key) {
    const json* value = Find(key);
    if (value == nullptr) return {};
    if (!value->is_array()) Fail(key, Is(*value, "no list"));
    return value->is_array() ? value->get<std::vector<json>>() : std::vector<json>();
  }
  std::vector<std::string> Texts(const char* key) {
    std::vector<std::string> texts;
    for (const json& element : List(key)) {
      if (element.is_string() && !element.get_ref<const std::string&>().empty()) {
        texts.push_back(element.get<std::string>());
      } else {
        Fail(key, Is(element, "no text"));
      }
    }
    return texts;
  }
  /// An object within this one.
  Section At(const json& object, const char* key, size_t index) const {
    return {object, name_, fmt::format("{}{}{}[{}]", path_, path_.empty() ? "" : ".", key, index),
            error_};
  }
  /// Reports an error of a key, or of the object itself if it is empty.
  void Fail(std::string_view key, const std::string& what) {
    if (*error_) return;
    const char* dot = path_.empty() || key.empty() ? "" : ".";
    *error_ = MakeError(ErrorCode::kInvalidArgument, "{}: {}{}{} {}", name_, path_, dot, key, what);
  }
  /// Fails for a key that was not read.
  void End() {
    if (!object_.is_object()) return;
    for (const auto& [key, value] : object_.items()) {
      if (known_.contains(key)) continue;
      std::string keys;
      for (const std::string& known : known_) keys += (keys.empty() ? "" : ", ") + known;
      Fail(key, "is unknown; known here are " + keys);
    }
  }

 private:
  static std::string Is(const json& value, const std::string& what) {
    return fmt::format("is {}, which is {}", Excerpt(value), what);
  }

  const json& object_;
  std::string name_;
  std::string path_;
  std::optional<Error>* error_;
  std::set<std::string> known_;
};

}  // namespace penstock::front
