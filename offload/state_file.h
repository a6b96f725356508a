// The state on the drives: where tiles live, and which of their versions a crash leaves behind.
//
// One file for each path (offload::StatePath); which tile lies on which path is nobody else's
// concern. Owns the table of places: for each tile the slot that the newest durable commit names.
// Format and order of writes: docs/state_format.md.
//
// Threads: const functions, Submit and Cancel from any thread; the others from one thread while no
// write is in flight (offload::TileStore drains first). After a failed commit every call returns
// that failure.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "aio/aio.h"
#include "base/result.h"
#include "base/trace.h"
#include "offload/checksum.h"
#include "offload/commit_record.h"
#include "offload/drive_speed.h"
#include "offload/layout.h"
#include "offload/state_format.h"
#include "offload/state_path.h"

namespace penstock::offload {

struct StateFileOptions {
  std::vector<std::string> folders;  ///< one for each path; files are named after the UUID
  bool durable = true;               ///< two slots
  std::optional<Uuid> uuid;          ///< none: a random one
  bool require_direct =
      true;                ///< false: fall back to buffered I/O (a RUN folder, not an nvme_path)
  bool simulated = false;  ///< in memory, for simulated drives: gone with the process
  SpeedProbe probe = MeasureSpeed;  ///< decides shares where there are several drives
};

/// I/O on one part of a tile.
struct PartRequest {
  Part part = Part::kWeight;
  TileId tile{};
  int slot = 0;
  aio::Operation operation = aio::Operation::kRead;
  std::span<std::byte> buffer;  ///< of the part's size
  aio::Priority priority = aio::Priority::kParameterRead;
  uint64_t version = 0;                            ///< of the tile, for traces
  std::function<void(const Status&)> on_complete;  ///< as in aio::Request
};

/// What a path has of the state.
struct PathShare {
  std::string path;           ///< of its file
  double bytes_a_second = 0;  ///< as measured; 0 where nothing was to be measured
  double share = 1;           ///< of the elements, padding included
};

struct OpenedState;

class StateFile {
 public:
  ~StateFile();
  /// Creates, locks and preallocates a file for each path, `engines` one for each (they outlive
  /// the state); durable when it returns. Errors: kNotFound, kPermission, kUnavailable (no
  /// O_DIRECT), kOutOfSpace with what is free and what is needed. After an error nothing is left
  /// behind.
  static Result<std::unique_ptr<StateFile>> Create(const ShardLayout& layout,
                                                   const StateFileOptions& options,
                                                   std::span<aio::Engine* const> engines);

  /// Opens and locks the files of a state, in the order of their paths, to go on from its newest
  /// commit. `layout` must be the one it was created with. Errors: those of Create and of
  /// StateReader::Open; kInvalidArgument for another layout.
  static Result<OpenedState> Open(const std::vector<std::string>& paths, const ShardLayout& layout,
                                  bool require_direct, std::span<aio::Engine* const> engines);

  const Uuid& uuid() const { return uuid_; }
  int slots() const { return shape_.slots; }
  std::vector<PathShare> Shares() const;

  /// From here on `trace` has a span for each part that is read or written.
  void TraceTo(Trace& trace);
  aio::Ticket Submit(PartRequest request);
  /// Fails what was submitted and no drive has yet with kCancelled. From any thread but an
  /// engine's.
  void Cancel();
  /// "PATH at offset N", for messages.
  std::string Where(Part part, TileId tile, int slot) const;

  /// The slot that the next version of a tile is written to: never one that a commit protects.
  int WriteSlot(TileId tile) const;

  /// With one slot, call before the first write after a commit: takes the commit back, durably.
  Status PrepareWrites();
  /// Steps 2 to 5 of a commit: everything written so far becomes durable, then the record, and when
  /// the drives have given that back `record` is the newest commit and its slots are protected.
  /// Fills in the sequence number. `still_good` is asked just before the record: an error of its
  /// own ends the commit there. Errors: of I/O and of CheckCommit.
  Status Commit(
      CommitRecord record, const std::function<Status()>& still_good = [] { return Status(); });

  /// Whether the newest commit is on the drives: every file is the one at its path, and whole, and
  /// its head and the record read back as they were written. What tiles hold is not read. It looks
  /// also after a failure. Errors: kNotFound where a file was deleted, or no commit stands;
  /// kUnavailable where one was moved away; kCorruption; kIo.
  Status CheckCommit() const;

 private:
  StateFile(const Uuid& uuid, const ShardLayout& layout, const StateShape& shape);
  Status CreatePaths(const StateFileOptions& options, std::span<aio::Engine* const> engines);
  Status ChooseShares(const StateFileOptions& options);
  void Protect(const CommitRecord& record, const WrittenBytes& written);
  void AddSpan(PartRequest& request);
  Status SyncAll();
  Status WriteCommit(CommitRecord record, const std::function<Status()>& still_good);
  Status CheckHeads() const;
  WrittenBytes PlaceOf(const CommitRecord& record, std::span<const std::byte> bytes) const;
  StatePath& commits() const { return *paths_.front(); }  ///< the path that holds them
  StatePath& PathOf(TileId tile) const { return *paths_[tiles_[Index(tile)].path]; }

  const Uuid uuid_;
  const ShardLayout layout_;
  StateShape shape_;
  /// Rows of a path's reads and writes.
  struct PathRows {
    PathRows(Trace& trace, const std::string& folder)
        : reads(trace, TraceGroup::kDrives, "reads of " + folder),
          writes(trace, TraceGroup::kDrives, "writes to " + folder) {}
    TraceRows reads;
    TraceRows writes;
  };
  std::deque<PathRows> rows_;  ///< empty without a trace; outlive the requests of the paths
  std::vector<std::unique_ptr<StatePath>> paths_;
  std::vector<double> speeds_;
  std::vector<TilePlace> tiles_;
  Status failure_;
  uint64_t sequence_ = 0;  ///< of the newest commit; 0: none
  bool commit_stands_ = false;
  WrittenBytes newest_;              ///< the record of the newest commit
  std::vector<int> committed_slot_;  ///< -1: no commit names the tile
};

struct OpenedState {
  std::unique_ptr<StateFile> file;
  CommitRecord commit;
};

/// The version that a commit of these tiles names of all that are not frozen; 0 where all are.
uint64_t VersionOf(const ShardLayout& layout, const CommitRecord& commit);
/// A random one. Errors: kIo.
Result<Uuid> RandomUuid();
/// The files that a rank of a state with this UUID has in these folders.
std::vector<std::string> StatePathsIn(const std::vector<std::string>& folders, const Uuid& uuid,
                                      uint32_t rank = 0);
/// The files of states in a folder, of whichever run, unfinished copies too, by name; none where it
/// cannot be read.
std::vector<std::string> AllStatesIn(const std::string& folder);

/// "9f0c…": 32 hexadecimal digits.
std::string ToString(const Uuid& uuid);

}  // namespace penstock::offload
