// Contracts between our own parts: checked in every build, fatal when broken.
#pragma once

#include <fmt/format.h>

#include <string>

namespace penstock::internal {

/// Writes "file:line: check failed: condition: message" to stderr and aborts.
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition,
                              const std::string& message);

inline std::string CheckMessage() { return {}; }
template <typename... Args>
std::string CheckMessage(fmt::format_string<Args...> format, Args&&... args) {
  return fmt::format(format, std::forward<Args>(args)...);
}

}  // namespace penstock::internal

/// PENSTOCK_CHECK(condition) or PENSTOCK_CHECK(condition, "format {}", args...).
#define PENSTOCK_CHECK(condition, ...)                                                    \
  do {                                                                                    \
    if (!(condition)) [[unlikely]] {                                                      \
      ::penstock::internal::CheckFailed(__FILE__, __LINE__, #condition,                   \
                                        ::penstock::internal::CheckMessage(__VA_ARGS__)); \
    }                                                                                     \
  } while (false)
