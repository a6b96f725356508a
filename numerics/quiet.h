// Prevents repeated reports: a finding is reported again only after it was absent for kQuietSteps
// steps.
//
// Threads: one.
#pragma once

#include <cstdint>
#include <optional>

#include "numerics/thresholds.h"

namespace penstock::train {

class Quiet {
 public:
  /// Notes that it is so in this step. Returns whether to say it.
  bool Say(uint64_t step) {
    const bool silent = last_ && step <= *last_ + kQuietSteps;
    last_ = step;
    return !silent;
  }
  /// Past reports no longer count.
  void Forget() { last_.reset(); }

 private:
  std::optional<uint64_t> last_;  ///< last step with the finding
};

}  // namespace penstock::train
