// Copies the newest commit of a state into files of their own.
//
// Where the file system can (reflink), a copy is made at once and shares its blocks with the
// original. Elsewhere space is reserved for what the commit names, that is read, verified and
// written, and the other slots stay holes. Either way the copy is a state of the same UUID that
// every reader takes.
//
// The original must not lose the commit meanwhile: who holds the lock makes no further commit, and
// with one slot no update. Threads: one.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "offload/state_reader.h"

namespace penstock::offload {

/// What a copy that takes space leaves free on each file system: what else is written there, by a
/// training too, goes on while it is made.
inline constexpr Bytes kFreeBesideCopy = 64_MiB;

/// What is written of `target` has this name, which a kill leaves behind; see RemovableState.
std::string UnfinishedCopy(const std::string& target);

/// Copies to `targets`, one for each path, which must not exist, and are not replaced where they do
/// by then (kInvalidArgument); they appear complete and durable, or not at all. `stop_requested` is
/// asked before every tile: kCancelled. Errors: kCorruption, naming the tile; kOutOfSpace.
Status CopyState(const StateReader& state, const std::vector<std::string>& targets,
                 const std::function<bool()>& stop_requested);

}  // namespace penstock::offload
