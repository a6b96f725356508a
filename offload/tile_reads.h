// Reads tiles of a commit past the page cache: each part is one request to an I/O engine, which has
// its blocks in flight at once.
//
// Threads: any; each reads into its own memory.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "aio/aio.h"
#include "aio/ticket.h"
#include "base/result.h"
#include "offload/checksum.h"
#include "offload/layout.h"
#include "offload/state_reader.h"
#include "offload/tile_rooms.h"

namespace penstock::offload {

/// The requests for both parts of a tile. Their memory stays in use until it ends.
struct PartTickets {
  aio::Ticket weight;
  aio::Ticket record;  ///< not valid: there is no record

  PartTickets() = default;
  ~PartTickets() { static_cast<void>(Wait()); }
  PartTickets(const PartTickets&) = delete;
  PartTickets& operator=(const PartTickets&) = delete;
  /// Waits for both, and returns the first failure.
  Status Wait() const;
};

/// An engine for each of several drives.
using Engines = std::vector<std::unique_ptr<aio::Engine>>;
/// Errors: of aio::CreateEngine.
Result<Engines> CreateEngines(size_t drives, const aio::EngineOptions& options = {});

/// The files of a state, opened for direct I/O where their file systems have it.
class TileReads {
 public:
  /// `engines`: of each path, and maybe more. Both outlive it. Errors: of opening the files.
  static Result<std::unique_ptr<TileReads>> Open(const StateReader& state, const Engines& engines);
  /// Waits for what the engines have, which may still read into memory or from the files.
  ~TileReads();
  TileReads(const TileReads&) = delete;
  TileReads& operator=(const TileReads&) = delete;

  /// Begins to read a part that the commit names; `buffer` has its size.
  aio::Ticket Submit(Part part, TileId tile, std::span<std::byte> buffer) const;
  /// Reads both parts and verifies them. Errors: of the reads, with file and offset; those of
  /// StateReader::VerifyPart.
  Status Read(TileId tile, const TileParts& parts) const;

 private:
  TileReads(const StateReader& state, const Engines& engines) : state_(state), engines_(engines) {}

  const StateReader& state_;
  const Engines& engines_;
  std::vector<aio::File> files_;  ///< indexed by path
};

}  // namespace penstock::offload
