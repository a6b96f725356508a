// RUN/doubt.json: that no loss which the newest commit's weights gave was finite.
//
// A run that ends by itself takes such a commit back (zero/session/commit_life.h); one that is
// killed cannot, so it says when the first of these losses is seen which commit is in doubt, and
// the next
// --resume goes back to the commit before it. Written and removed by rank 0 when that changes, so
// that healthy steps write nothing. Threads: one at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/folder.h"
#include "base/result.h"

namespace penstock::train {

inline constexpr const char* kDoubtName = "doubt.json";

/// A commit of a state.
struct DoubtedCommit {
  std::string state_uuid;
  uint64_t step = 0;
};

/// Notes it, durably, or removes the note.
Status NoteDoubt(const Folder& run, const DoubtedCommit& commit);
Status RemoveDoubt(const Folder& run);

/// Returns the step of the commit of this state that is in doubt, if one is. A note that cannot be
/// read says nothing.
std::optional<uint64_t> DoubtedStep(const Folder& run, const std::string& state_uuid);

}  // namespace penstock::train
