// What a commit of a run says (docs/run_format.md, "The text of a commit"): the identity of its
// training, and the caller's part.
//
// Threads: any.
#pragma once

#include <string>

#include "base/result.h"

namespace penstock::front {

/// What a commit must agree in to be continued.
struct Identity {
  std::string keys = "{}";  ///< a JSON object, by whose keys a difference has a name
  std::string older;        ///< what commits of the package's older format have in its place
};

/// Returns the text of a commit. Errors: kInvalidArgument if `caller` is no JSON object.
Result<std::string> MakeCommitText(const Identity& identity, const std::string& caller);

/// Returns the caller's part of a commit's text, also of the package's older format. `run`: for
/// messages. Errors: kCorruption if it is no text of a run; kInvalidArgument if it is of another
/// training than `identity`, and in what.
Result<std::string> CallersPart(const std::string& text, const Identity& identity,
                                const std::string& run);

}  // namespace penstock::front
