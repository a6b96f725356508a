// The edit distance of two names, to suggest the one that was meant.
//
// Threads: any.
#pragma once

#include <cstddef>
#include <string_view>

namespace penstock {

/// Returns the Levenshtein distance without regard to case: how many letters have to be put in,
/// taken out or replaced to make `a` of `b`. Takes a time in proportion to the product of their
/// lengths.
size_t EditDistance(std::string_view a, std::string_view b);

}  // namespace penstock
