// The message of a run that fails: what is left of its commits, and what its user can do.
//
// Threads: one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"
#include "config/config.h"
#include "numerics/advice.h"
#include "run/rows/metrics_file.h"
#include "zero/session/session.h"

namespace penstock::train {

/// Returns "step 7 is committed in FILES"; if the newest commit cannot be read back, says that it
/// was committed, and why, unless `failure`, to which the text is appended, says so itself.
std::string CommittedIn(uint64_t step, const zero::Session& session, const Error& failure);

/// Returns what a failure leaves of the commits.
std::string WhatIsCommitted(const zero::Session& session, bool durable, const Error& failure);

/// A commit that a failure was to take back.
struct TakenBack {
  bool taken = false;
  std::string text;  ///< with "; " before it; empty if no commit is in doubt
};
/// If a run ends because of its numbers, takes back a commit that they speak against.
TakenBack TakeBackDoubtfulCommit(zero::Session& session);

/// Returns what is known of a run that its numbers end, when they do. `loss`: of the last step,
/// finished or not, if one was computed; `row`: of that step, if it was finished.
NumericEnd HowItEnds(const std::optional<double>& loss, const std::optional<StepRow>& row,
                     const zero::Session& session, const config::Config& config);

/// A run that its numbers have ended.
struct NumericFailure {
  uint64_t step = 0;  ///< that ended it
  NumericEnd end;
  bool first_is_known = false;  ///< a search has named the first value that is not finite
};
/// Returns the end of its message, after what is committed: whether the commit can be resumed, or
/// what else to do.
std::string HowToGoOn(const NumericFailure& failure, const zero::Session& session,
                      const config::Config& config);

}  // namespace penstock::train
