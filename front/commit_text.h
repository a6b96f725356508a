// The text of a run's commit (docs/run_format.md, "The text of a commit"): the identity of its
// training, and the caller's part.
//
// Threads: any.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/result.h"
#include "base/units.h"

namespace penstock::front {

/// The values that a commit must have to be resumed.
struct Identity {
  std::string keys = "{}";  ///< a JSON object, whose keys name differences
  std::string older;        ///< what commits of the package's older format have in its place
};

/// A longer caller's part is in a file of its own.
inline constexpr Bytes kMaxCallerInText = 32_KiB;

struct CommitText {
  std::string text;
  std::string caller_file;  ///< the content of the file that `text` names; empty: it names none
};

/// Returns the text of a commit. `row`: of its step, as in metrics.jsonl; empty if it has none.
/// `samples`: that the steps up to it took. Errors: kInvalidArgument if `caller` is no JSON object,
/// or too long.
Result<CommitText> MakeCommitText(const Identity& identity, std::string caller,
                                  const std::string& row,
                                  const std::optional<uint64_t>& samples = {});
/// Returns the samples that a commit's text has, if it has them.
std::optional<uint64_t> SamplesOfCommit(const std::string& text);

/// Returns the caller's part of a commit's text, also of the package's older format. `run`: for
/// messages. `read_file` returns the content of the commit's caller's file. Errors: kCorruption if
/// it is no text of a run; kInvalidArgument if it is of another training than `identity`, naming
/// the difference; of `read_file`.
Result<std::string> CallersPart(const std::string& text, const Identity& identity,
                                const std::string& run,
                                const std::function<Result<std::string>()>& read_file);

}  // namespace penstock::front
