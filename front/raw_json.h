// Values of a JSON text as they are written there, so that no number loses digits.
//
// Threads: any.
#pragma once

#include <string_view>

namespace penstock::front {

/// Returns the text of the value of `key` in the object that `object` is; empty without one.
/// Precondition: `object` is valid JSON (base/strict_json.h) and the key has no escapes.
std::string_view RawValue(std::string_view object, std::string_view key);

}  // namespace penstock::front
