// The text of a run's commit (docs/run_format.md, "The text of a commit"): the identity of its
// training, and the caller's part.
//
// Threads: any.
#pragma once

#include <string>

#include "base/result.h"

namespace penstock::front {

/// The values that a commit must have to be resumed.
struct Identity {
  std::string keys = "{}";  ///< a JSON object, whose keys name differences
  std::string older;        ///< what commits of the package's older format have in its place
};

/// Returns the text of a commit. `row`: of its step, as in metrics.jsonl; empty if it has none.
/// Errors: kInvalidArgument if `caller` is no JSON object.
Result<std::string> MakeCommitText(const Identity& identity, const std::string& caller,
                                   const std::string& row);

/// Returns the caller's part of a commit's text, also of the package's older format. `run`: for
/// messages. Errors: kCorruption if it is no text of a run; kInvalidArgument if it is of another
/// training than `identity`, naming the difference.
Result<std::string> CallersPart(const std::string& text, const Identity& identity,
                                const std::string& run);

}  // namespace penstock::front
