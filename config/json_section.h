// Typed, strict access to one object of a JsonDocument.
//
// A JsonReader walks the document; a JsonSection is one object of it. Every requested key is known;
// keys left over at the end of a section are unknown and reported with the nearest known key. The
// first failure is kept and everything after it returns fallbacks, so that the code that reads a
// section is a list of its keys. An "auto" that has no value yet (config/auto.cc) takes the
// fallback and is listed. Not thread-safe; a section must not outlive the callback that received
// it.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/strict_json.h"
#include "config/json_reader.h"
#include "nlohmann/json.hpp"

namespace penstock::config {

/// What a value may be; a set of these.
enum JsonKind : unsigned {
  kBool = 1,
  kInteger = 2,  ///< 5e8 is one, too
  kNumber = 4,
  kText = 8,
  kList = 16,
  kObject = 32,
  kNull = 64,
  kAny = 127,
};

struct IntegerRange {
  int64_t low = 0;
  int64_t high = std::numeric_limits<int64_t>::max();
};

/// A finite number in [low, high].
struct NumberRange {
  double low = 0;
  double high = std::numeric_limits<double>::max();
};

/// A key that is not obeyed, but known.
struct JsonRule {
  std::string_view name;
  unsigned kinds = kAny;
  /// A JSON list of the values that leave the feature off, or empty.
  std::string_view off = {};
  /// What to do instead, where it is more than writing an allowed value.
  std::string_view hint = {};
};
using JsonRules = std::initializer_list<JsonRule>;

class JsonSection {
 public:
  JsonSection(JsonReader& reader, const nlohmann::json& object, std::string path)
      : reader_(reader), object_(object), path_(std::move(path)) {}
  JsonSection(const JsonSection&) = delete;
  JsonSection& operator=(const JsonSection&) = delete;

  std::string PathOf(std::string_view key) const { return JoinJsonPath(path_, key); }
  void Fail(std::string_view key, const std::string& message) {
    reader_.Fail(PathOf(key), message);
  }

  /// The value, and the key becomes known; null where it is absent. For values of several types.
  const nlohmann::json* Find(std::string_view key);
  /// True where the value is the text "auto", which is then listed with the default that it takes.
  bool TakeAuto(std::string_view key, const nlohmann::json& value,
                const nlohmann::json& fallback = nullptr, const char* source = "default");

  bool Bool(std::string_view key, bool fallback);
  int64_t Integer(std::string_view key, int64_t fallback, IntegerRange range = {});
  double Number(std::string_view key, double fallback, NumberRange range = {});
  /// The optional ones take null for absent.
  std::optional<int64_t> OptionalInteger(std::string_view key, IntegerRange range = {});
  std::optional<double> OptionalNumber(std::string_view key, NumberRange range = {});
  std::optional<std::string> OptionalText(std::string_view key);

  /// One of the named values; a choice named "auto" is an ordinary one.
  template <typename T>
  T Choice(std::string_view key, std::initializer_list<std::pair<std::string_view, T>> choices,
           T fallback) {
    std::vector<std::string_view> names;
    for (const auto& choice : choices) names.push_back(choice.first);
    std::string_view standing;
    for (const auto& choice : choices) {
      if (choice.second == fallback) standing = choice.first;
    }
    const std::optional<size_t> index = ChoiceIndex(key, names, standing);
    return index ? (choices.begin() + *index)->second : fallback;
  }

  /// Reads the object at `key` with `read`; absent and null are an empty object.
  void Object(std::string_view key, const std::function<void(JsonSection&)>& read);

  /// Keys for what is done in another way here: type-checked and listed as superseded, unless the
  /// value is one of `rule.off`.
  void Superseded(Instead instead, JsonRules rules);
  /// Keys of features that are not implemented: an error unless the value is one of `rule.off`.
  void Off(JsonRules rules);
  /// A key that is an error with any value. `meant`: the path of the intended key.
  void Refuse(std::string_view key, const std::string& message, std::string meant = {});
  /// Keys that mean nothing while their feature is off: type-checked.
  void Inert(JsonRules rules);
  /// An object, unchecked but for this: an "enabled" anywhere in it must be false.
  void DisabledTree(std::string_view key);

 private:
  friend class JsonReader;
  const nlohmann::json* Take(const JsonRule& rule);
  std::optional<size_t> ChoiceIndex(std::string_view key,
                                    const std::vector<std::string_view>& names,
                                    std::string_view fallback);
  std::optional<int64_t> ToInteger(std::string_view key, const nlohmann::json& value,
                                   IntegerRange range);
  std::optional<double> ToNumber(std::string_view key, const nlohmann::json& value,
                                 NumberRange range);
  void FailType(std::string_view key, unsigned kinds, const nlohmann::json& value);
  void Finish();

  JsonReader& reader_;
  const nlohmann::json& object_;
  const std::string path_;
  std::set<std::string, std::less<>> asked_;
};

/// The value as JSON on one line, cut where it is long.
std::string Show(const nlohmann::json& value);
/// A path for a message: on one line for any keys.
std::string ShowPath(const std::string& path);
/// The number as an integer, where it is one that fits ("5e8" does).
std::optional<int64_t> AsInteger(const nlohmann::json& value);

}  // namespace penstock::config
