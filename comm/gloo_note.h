// Notes of a fixed size that ranks send each other besides data: their call, and why they end. The
// reason is text, because the other side shows it to people.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "comm/exchange.h"

namespace penstock::comm {

struct GlooNote {
  static constexpr size_t kMaxText = 1012;

  uint64_t fingerprint = 0;  ///< fingerprint of a call
  uint32_t length = 0;
  char text[kMaxText] = {};

  /// Keeps as much of the text as there is room for.
  void Set(uint64_t print, std::string_view words);
  std::string Text() const;
};

/// Returns a number that two calls share only if SameCall holds, or by a chance of 2^-63. Its top
/// bit is set.
uint64_t Fingerprint(const Exchange& exchange);

}  // namespace penstock::comm
