// Reads the fields of an object of run.json. A missing field or one of another type is an error
// that names the key.
//
// Threads: any.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/folder.h"
#include "base/result.h"

namespace penstock::train {

/// Returns the error for an impossible run.json: kCorruption.
Error DamagedInfo(const Folder& run, const std::string& why);

/// An object of the run.json in `run`; both outlive it. Errors of all functions: kCorruption.
class JsonFields {
 public:
  /// `where`: what the object is, for messages, such as "state"; empty: the whole file.
  static Result<JsonFields> Of(const nlohmann::json& value, const std::string& where,
                               const Folder& run);

  bool Has(const char* key) const { return object_.contains(key); }
  Result<std::string> Text(const char* key) const;
  /// A text with at least one character.
  Result<std::string> Name(const char* key) const;
  Result<bool> Bool(const char* key) const;
  /// Numbers that JSON's reader would round or wrap are no numbers that a run wrote.
  Result<uint64_t> Whole(const char* key) const;
  Result<const nlohmann::json*> Value(const char* key) const;
  Result<JsonFields> Object(const char* key) const;
  /// Returns the objects of a list.
  Result<std::vector<JsonFields>> Objects(const char* key) const;
  Result<std::vector<std::string>> Texts(const char* key) const;
  /// Refuses every key that is none of these.
  Status CheckKeys(std::initializer_list<std::string_view> known) const;

 private:
  JsonFields(const nlohmann::json& object, std::string where, const Folder& run)
      : object_(object), where_(std::move(where)), run_(run) {}
  Error Wrong(const char* key, const nlohmann::json& value, const char* expected) const;
  std::string PathOf(std::string_view key) const;

  const nlohmann::json& object_;
  std::string where_;
  const Folder& run_;
};

}  // namespace penstock::train
