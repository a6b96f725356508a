// Makes foreign text (arguments, paths, content of files) safe for a message: it cannot control a
// terminal, and no long word or line of it hides the rest.
//
// Pure functions; any thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace penstock {

/// Longer words keep their beginning and their end, with their size between. A path may be longer
/// by far, but its beginning and its end say which one it is.
inline constexpr size_t kMaxMessageWord = 1024;
/// The longest message.
inline constexpr size_t kMaxMessage = 8192;

/// Returns `text` with controls as "\u001b", which is what JSON's strings have, and bytes that are
/// no UTF-8 as "\xff"; line breaks and tabs stay.
std::string Printable(std::string_view text);

/// Returns `text` as one line: printable, with spaces for line breaks but at its end, and with long
/// words and the middle of a long text left out.
std::string MessageLine(std::string_view text);

}  // namespace penstock
