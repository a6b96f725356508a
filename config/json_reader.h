// Reads one JsonDocument, and keeps what is wrong with it: the first failure, and the keys that
// nobody asked for, with the key that was probably meant. Not thread-safe.
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "config/json_document.h"

namespace penstock::config {

class JsonSection;

class JsonReader {
 public:
  /// `document` must outlive the reader.
  explicit JsonReader(const JsonDocument& document) : document_(document) {}

  /// Reads the document's root with `read`.
  void Read(const std::function<void(JsonSection&)>& read);

  /// Keeps the first failure: "<source>:<line>: <path>: <message>".
  void Fail(const std::string& path, const std::string& message);
  bool failed() const { return error_.has_value(); }
  /// The first failure; without one, the first unknown key; without that, success.
  Status status() const;

  const std::vector<std::string>& superseded() const { return superseded_; }
  const std::vector<std::string>& automatic() const { return automatic_; }
  void AddAutomatic(const std::string& path) { automatic_.push_back(path); }
  /// Paths of all keys that were asked for.
  const std::set<std::string>& known() const { return known_; }

 private:
  friend class JsonSection;
  struct Unknown {
    std::string path;
    std::string parent;
    std::string key;
  };

  std::string Suggestion(const Unknown& unknown) const;

  const JsonDocument& document_;
  std::optional<Error> error_;
  std::vector<Unknown> unknown_;
  std::set<std::string> known_;
  std::vector<std::string> superseded_;
  std::vector<std::string> automatic_;
};

}  // namespace penstock::config
