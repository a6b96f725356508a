// The state file: where tiles live on the drive, and which of their versions a crash leaves behind.
//
// Owns the open, locked, preallocated file and the table of places: for each tile the slot of its
// newest version on the drive, and the slot that the newest durable commit names. All I/O goes
// through the engine it is given. Format and order of writes: docs/state_format.md.
//
// Threads: const functions from any thread; the others from one thread while no write is in flight
// (offload::TileStore drains first). After a failed commit every call returns that failure.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "aio/aio.h"
#include "base/result.h"
#include "offload/checksum.h"
#include "offload/layout.h"
#include "offload/state_format.h"

namespace penstock::offload {

struct StateFileOptions {
  std::string folder;   ///< the file's name is made from its UUID
  bool durable = true;  ///< two slots
  bool require_direct =
      true;                ///< false: fall back to buffered I/O (a RUN folder, not an nvme_path)
  bool simulated = false;  ///< in memory (memfd), for a simulated drive: gone with the process
};

class StateFile {
 public:
  /// Creates, locks and preallocates; writes the head; durable when it returns. Errors: kNotFound,
  /// kPermission, kUnavailable (no O_DIRECT), kOutOfSpace with what is free and what is needed.
  /// After an error nothing is left behind.
  static Result<std::unique_ptr<StateFile>> Create(const Layout& layout,
                                                   const StateFileOptions& options,
                                                   aio::Engine& engine);

  /// Removes a file that never held a commit: it is of no use to anybody.
  ~StateFile();

  const std::string& path() const { return file_.path(); }
  const aio::File& file() const { return file_; }
  const Uuid& uuid() const { return header_.uuid; }
  int slots() const { return header_.geometry.slots; }

  FileOffset WeightOffset(TileId tile, int slot) const;
  FileOffset RecordOffset(TileId tile, int slot) const;

  /// The slot that the next version of a tile is written to: never one that a commit protects.
  int WriteSlot(TileId tile) const;

  /// With one slot, call before the first write after a commit: takes the commit back, durably.
  Status PrepareWrites();
  /// Steps 2 to 4 of a commit: everything written so far becomes durable, then the record, then
  /// `record` is the newest commit and its slots are protected. Fills in the sequence number.
  Status Commit(CommitRecord record);

 private:
  StateFile(aio::File file, StateHeader header, bool simulated, aio::Engine& engine);
  Status WriteHead();
  Status WriteCommit(CommitRecord record);
  Status WriteAligned(FileOffset offset, const std::vector<std::byte>& bytes);

  aio::File file_;
  StateHeader header_;
  aio::Engine& engine_;
  bool simulated_;
  Status failure_;
  uint64_t sequence_ =
      0;  ///< of the newest commit; 0: none, and the file goes away with the object
  bool commit_stands_ = false;
  std::vector<int> committed_slot_;  ///< -1: no commit names the tile
};

/// "9f0c…": 32 hexadecimal digits.
std::string ToString(const Uuid& uuid);

/// Takes the flock of an open file, retrying for 5 seconds. Errors: kUnavailable.
Status LockFile(int fd, bool exclusive, const std::string& path);

}  // namespace penstock::offload
