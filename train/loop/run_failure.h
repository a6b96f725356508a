// The message of a run that fails: which commits are left, and what the user can do.
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

/// Returns "step 7 is committed in FILES"; if the newest commit cannot be read back, says so with
/// the reason, unless `failure`, to which the text is appended, contains it.
std::string CommittedIn(uint64_t step, const zero::Session& session, const Error& failure);

/// Returns the text about the commits that are left after a failure.
std::string WhatIsCommitted(const zero::Session& session, bool durable, const Error& failure);

/// The result of taking back a commit after a failure.
struct TakenBack {
  bool taken = false;
  std::string text;  ///< with "; " before it; empty if no commit is in doubt
};
/// If a run ends because of its numerics, takes back a commit that they put in doubt.
TakenBack TakeBackDoubtfulCommit(zero::Session& session);

/// Returns the facts about a run that ends because of its numerics. `loss`: of the last step,
/// finished or not, if one was computed; `row`: of that step, if it was finished.
NumericEnd HowItEnds(const std::optional<double>& loss, const std::optional<StepRow>& row,
                     const zero::Session& session, const config::Config& config);

/// A run that ended because of its numerics.
struct NumericFailure {
  uint64_t step = 0;  ///< the last step
  NumericEnd end;
  bool first_is_known = false;  ///< a search has named the first non-finite value
};
/// Returns the end of its message, after the commits: how to resume, or what else to do.
std::string HowToGoOn(const NumericFailure& failure, const zero::Session& session,
                      const config::Config& config);

}  // namespace penstock::train
