// Reads everything that a commit names, and verifies every checksum, at drive speed.
//
// Several tiles are in flight at once, through an I/O engine for each path, and are hashed by as
// many threads. Damage does not end the check: every damaged part is found and named.
//
// Threads: one; it starts and joins its own.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "offload/state_reader.h"

namespace penstock::offload {

struct StateCheck {
  /// One line each: what is damaged, and "PATH at offset N".
  std::vector<std::string> damages;
  size_t in_heads = 0;  ///< number of damages in heads and commit places
  Bytes read;           ///< bytes of weights and records
};

/// Called from the checking threads, one at a time, with the bytes read so far and the bytes in
/// total. An error ends the check, which returns it.
using CheckProgress = std::function<Status(Bytes done, Bytes total)>;
/// Without progress reports.
inline const CheckProgress kNoProgress = [](Bytes, Bytes) { return Status(); };

/// Called from the checking threads, several at a time, with the bytes of a tile that is intact.
using TileVisitor = std::function<void(TileId tile, std::span<const std::byte> weight,
                                       std::span<const std::byte> record)>;

/// Checks everything before the slots in every file, every part of every tile that the newest
/// commit names, and its caller's file. A part that cannot be read is damaged. `visit`: where
/// given, sees every tile of which both parts are intact. Errors: if the check itself cannot be
/// made; of `progress`.
Result<StateCheck> CheckState(const StateReader& state, const CheckProgress& progress,
                              const TileVisitor& visit = {});

/// The same without what is before the slots.
Result<StateCheck> CheckTiles(const StateReader& state, const CheckProgress& progress,
                              const TileVisitor& visit = {});

}  // namespace penstock::offload
