// What a replay computes: the configuration of a commit, the steps between which a run changed it,
// and where to end (docs/numerics.md).
//
// Threads: any.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/result.h"
#include "run/identity/run_changes.h"
#include "run/identity/skipped_steps.h"

namespace penstock::train {

/// Steps that are computed with one configuration.
struct ReplaySegment {
  uint64_t last = 0;
  std::vector<RequestedChange> changes;  ///< changes from its first step on
};

/// Returns the segments of steps `from` + 1 to `to`. `changes`: all of the run.
std::vector<ReplaySegment> ReplaySegments(const std::vector<RunChange>& changes, uint64_t from,
                                          uint64_t to);

/// Returns the first step after `step` that a run computes.
uint64_t StepAfter(uint64_t step, const std::vector<StepRange>& skips);

/// Whether a key of an identity (run/identity/run_identity.h) is the dtype's: bf16, fp16, and in
/// what gradients are rounded.
bool IsOfDtype(std::string_view key);

/// Returns the dtype of an identity.
DType DTypeOf(const std::string& identity);

/// Returns the text of a configuration that computes on one rank what that of `identity` did, with
/// the state in `folder`, one slot and no commits on the way; `fp32`: in fp32. Errors:
/// kInvalidArgument if one rank cannot: gradients were added by rank.
Result<std::string> ReplayConfig(const std::string& identity, const std::string& folder, bool fp32);

}  // namespace penstock::train
