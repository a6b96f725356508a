// Reads foreign JSON strictly: no duplicate keys, bounded nesting, no exceptions. An error is a
// value with its place, from which each reader makes the message for its file.
//
// Threads: any.
#pragma once

#include <cstddef>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace penstock {

/// Deeper nesting is refused, because copying or printing a value recurses into it.
inline constexpr int kDeepestJson = 64;
inline constexpr size_t kMaxJsonPath = 256;

/// Why a text is refused.
struct JsonFault {
  enum class Kind { kSyntax, kUnreadable, kTooDeep, kDuplicateKey };
  Kind kind;
  /// The last byte that was read, from 1. A byte behind the last one: the text ends too soon.
  size_t byte = 0;
  size_t line = 0;  ///< kTooDeep, kDuplicateKey: the line of that byte, from 1
  /// What is wrong there, of kSyntax and kUnreadable (a number beyond all bounds), in our words.
  std::string reason = {};
  std::string key = {};   ///< kDuplicateKey: the key
  std::string path = {};  ///< kDuplicateKey: its path, as in JsonLines
  size_t first_line = 0;  ///< kDuplicateKey: the first line of the key
};

/// The line of each key, by path: "a.b" for the key b of the object at a, "a.[].b" for the key b of
/// an object in the list at a. Paths of more than kMaxJsonPath bytes are left out: no text of
/// ours has such, and a text of many keys below a long one would take the square of its size.
using JsonLines = std::map<std::string, size_t>;

/// How ParseStrictly reads a text.
struct JsonOptions {
  bool comments = false;       ///< allow // and /* */
  JsonLines* lines = nullptr;  ///< gets the first line of each key; null: not collected
};
/// Parses `text` into `value`, unless something is wrong with the text: then `value` stays as it
/// was, and one fault is returned. A syntax error or a number beyond all bounds (kSyntax,
/// kUnreadable) ends the parsing and is returned, even after another fault. Otherwise it is the
/// first fault: a duplicate key or a value that is nested too deep. Behind that nothing is looked
/// at any more but the syntax and the bounds of numbers, and `lines` gets no more keys.
std::optional<JsonFault> ParseStrictly(std::string_view text, JsonOptions options,
                                       nlohmann::json* value);

/// Returns "a.b" for the key b of the object at a; the root has the empty path.
std::string JoinJsonPath(std::string path, std::string_view key);

/// Returns the object that `text` holds. If it holds none, returns an error of kind `code` that
/// says what is wrong with `name` (a path, or a part of a file), and where.
Result<nlohmann::json> ParseJsonObject(std::string_view text, const std::string& name,
                                       ErrorCode code);

/// Checks that ParseJsonObject would succeed, and keeps no value: for a long text.
Status CheckJsonObject(std::string_view text, const std::string& name, ErrorCode code);

/// Returns what is wrong with a value that was read from JSON, in our words: the library's own name
/// its exceptions.
std::string JsonReason(const nlohmann::json::exception& error);

/// Whether JSON can hold `text`: it is UTF-8.
bool FitsJson(const std::string& text);

/// Returns a value as short text for a message: `"768"`, `[1, 2…`.
std::string Excerpt(const nlohmann::json& value);

}  // namespace penstock
