// Reads one JsonDocument, and keeps its errors: the first failure, and the unknown keys, each with
// the key that was probably meant. Not thread-safe.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "config/auto.h"
#include "config/json_document.h"
#include "config/superseded.h"

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

  const std::vector<SupersededKey>& superseded() const { return superseded_; }
  const std::vector<AutomaticKey>& automatic() const { return automatic_; }
  void AddAutomatic(AutomaticKey key) { automatic_.push_back(std::move(key)); }
  /// Paths of all keys that were asked for.
  const std::set<std::string>& known() const { return known_; }
  /// Keys among them that are an error with any value, with the intended key, if any.
  const std::map<std::string, std::string>& refused() const { return refused_; }
  /// Returns the message for each unknown key.
  std::vector<std::string> UnknownKeys() const;

 private:
  friend class JsonSection;
  struct Unknown {
    std::string path;
    std::string parent;
    std::string key;
  };

  std::string Describe(const Unknown& unknown) const;
  std::string Suggestion(const Unknown& unknown) const;
  /// Returns the sections in which a key of this name is known.
  std::vector<std::string> PlacesOf(const std::string& key) const;
  /// The key of the same section that is spelled almost so; empty where none is.
  std::string Nearest(const Unknown& unknown, size_t furthest) const;

  const JsonDocument& document_;
  std::optional<Error> error_;
  std::vector<Unknown> unknown_;
  std::set<std::string> known_;
  std::map<std::string, std::string> refused_;
  std::vector<SupersededKey> superseded_;
  std::vector<AutomaticKey> automatic_;
};

}  // namespace penstock::config
