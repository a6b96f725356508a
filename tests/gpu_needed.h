// What a test does where there is no GPU: it skips and says so. Where PENSTOCK_REQUIRE_GPU is set,
// there has to be one, and it fails.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>

namespace penstock {

inline bool GpuRequired() {
  return std::getenv("PENSTOCK_REQUIRE_GPU") != nullptr;  // NOLINT(concurrency-mt-unsafe)
}

}  // namespace penstock

/// In SetUp: leaves it where there is a `missing` (std::optional<std::string>) reason.
#define PENSTOCK_SKIP_WHERE_MISSING(missing)                    \
  if (const auto penstock_missing = (missing)) {                \
    if (::penstock::GpuRequired()) FAIL() << *penstock_missing; \
    GTEST_SKIP() << *penstock_missing;                          \
  }                                                             \
  static_assert(true)
