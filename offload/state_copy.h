// Copies the commit of a state into new files, for all ranks, and its caller's file beside path 0
// (offload/caller_file.h).
//
// If the file system has reflinks, a copy is a clone, which shares its blocks with the original;
// the other slots become holes, and the parts that the commit names are read and verified.
// Otherwise space is reserved for these parts; they are read, verified and written, and the other
// slots stay holes. Tiles go past the page cache, where the file systems have direct I/O, several
// at a time through an engine for each path. Either way there must be room for these parts, which a
// clone takes once the original is written, and the copy is a state of the same UUID that every
// reader accepts.
//
// The original must not lose the commit meanwhile: the holder of the lock makes no further commit
// and, with one slot, no update. Threads: one, which starts and joins others.
#pragma once

#include <functional>

#include "aio/aio.h"
#include "base/result.h"
#include "base/units.h"
#include "offload/whole_state.h"

namespace penstock::offload {

/// The space that a copy leaves free on each file system, because other files, a training's too,
/// are written there meanwhile.
inline constexpr Bytes kFreeBesideCopy = 64_MiB;

/// Copies to `targets`, one for each file of `state`. Neither they nor callers' files beside them
/// may exist; if one does by the end, it is not replaced (kInvalidArgument). They appear complete
/// and durable, path 0 of rank 0 last; if the copy fails before that, none appears.
/// `stop_requested` is asked before every tile: kCancelled. `io`: of the engines. Errors:
/// kCorruption, naming the tile; kOutOfSpace; of reads and writes, with file and offset.
Status CopyState(const WholeState& state, const RankPaths& targets,
                 const std::function<bool()>& stop_requested, const aio::EngineOptions& io = {});

}  // namespace penstock::offload
