// JSON of others, read strictly: one object, no key twice, and no exception leaves.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/result.h"

namespace penstock::train {

/// The object that `text` holds. Where it is none, an error of kind `code` that says what `name` (a
/// path, or a part of a file) is not, and where.
Result<nlohmann::json> ParseJsonObject(std::string_view text, const std::string& name,
                                       ErrorCode code);

/// A value as short text for a message: `"768"`, `[1, 2…`.
std::string Excerpt(const nlohmann::json& value);

}  // namespace penstock::train
