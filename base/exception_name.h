// What a message says of an exception that a library has thrown and that nothing foresaw: its type.
// The library's own text is of its code, and not of what the user did.
#pragma once

#include <exception>
#include <string>

namespace penstock {

/// Returns the type, as in "std::length_error".
std::string ExceptionName(const std::exception& exception);

}  // namespace penstock
