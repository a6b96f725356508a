#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace penstock::internal {

void CheckFailed(const char* file, int line, const char* condition, const std::string& message) {
  std::fprintf(stderr, "penstock: bug: %s:%d: check failed: %s%s%s\n", file, line, condition,
               message.empty() ? "" : ": ", message.c_str());
  std::abort();
}

}  // namespace penstock::internal
