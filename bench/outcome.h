// Ends a benchmark: with 0, or with 3 and a line on stderr that says why.
#pragma once

#include <cstdio>
#include <exception>

#include "base/result.h"

namespace penstock::bench {

/// Runs `work`, which returns an exit code or why there is none, and returns the program's. `name`
/// is the program's, for the line.
template <typename Work>
int OutcomeOf(const char* name, const Work& work) {
  try {
    const Result<int> code = work();
    if (code.ok()) return *code;
    std::fprintf(stderr, "%s: error: %s\n", name, code.error().message.c_str());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: error: %s\n", name, error.what());
  }
  return 3;
}

}  // namespace penstock::bench
