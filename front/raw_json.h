// Values of a JSON text as written, so that no number loses digits.
//
// Threads: any.
#pragma once

#include <string_view>

namespace penstock::front {

/// Returns the text of the value of `key` in `object`; empty if it has no such key. Precondition:
/// `object` is valid JSON (base/strict_json.h) and the key has no escapes.
std::string_view RawValue(std::string_view object, std::string_view key);

}  // namespace penstock::front
