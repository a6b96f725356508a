// RUN/doubt.json: notes that no loss computed with the newest commit's weights was finite.
//
// A run that ends by itself takes such a commit back (zero/session/commit_life.h). A killed run
// cannot, so it notes the commit in doubt at the first of these losses, and the next --resume
// resumes from the commit before. Rank 0 writes and removes the note when that changes, so healthy
// steps write nothing. Threads: one at a time.
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
/// read is ignored.
std::optional<uint64_t> DoubtedStep(const Folder& run, const std::string& state_uuid);

}  // namespace penstock::train
