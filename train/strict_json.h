// JSON of others, read strictly: one object, no key twice, not nested without bound, and no
// exception leaves.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/result.h"

namespace penstock::train {

/// Deeper nesting is refused: what is done with a value (copy, text) recurses into it.
inline constexpr int kDeepestJson = 64;

/// The object that `text` holds. Where it is none, an error of kind `code` that says what `name` (a
/// path, or a part of a file) is not, and where.
Result<nlohmann::json> ParseJsonObject(std::string_view text, const std::string& name,
                                       ErrorCode code);

/// Whether JSON can hold `text`: it is UTF-8.
bool FitsJson(const std::string& text);

/// A value as short text for a message: `"768"`, `[1, 2…`.
std::string Excerpt(const nlohmann::json& value);

}  // namespace penstock::train
