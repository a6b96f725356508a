// One JSON object from several texts, read strictly, with the place of each key.
//
// Comments (// and /* */) are allowed. A duplicate key, broken JSON, a root that is no object and
// nesting beyond kDeepestJson are errors that name the text and the line. Owns its values; not
// thread-safe.
#pragma once

#include <map>
#include <string>

#include "base/result.h"
#include "nlohmann/json.hpp"

namespace penstock::config {

class JsonDocument {
 public:
  /// Parses `text` and lays it over what is there: objects merge key by key, everything else
  /// replaces. `name` stands in messages. Errors: kInvalidArgument; the document is then unchanged.
  Status Merge(const std::string& name, const std::string& text);

  const nlohmann::json& root() const { return root_; }
  /// Puts a value at `path`, creating objects for missing or null parents. Returns false without a
  /// change if a parent is something else. `where`: the source of the value, for messages; empty:
  /// that of the value before.
  bool Set(const std::string& path, const nlohmann::json& value, const std::string& where);
  /// Takes the object at `from` away and lays it over the one at `to`, key by key. There are such
  /// an object at `from`, and an object, null or nothing at `to`.
  void Move(const std::string& from, const std::string& to);
  /// "ds.json:12: " for the text and line that supplied the key at `path`, or the nearest object
  /// around it that has one; empty where no text does.
  std::string Where(const std::string& path) const;

 private:
  nlohmann::json root_ = nlohmann::json::object();
  std::map<std::string, std::string> positions_;  ///< path -> "name:line"
};

}  // namespace penstock::config
