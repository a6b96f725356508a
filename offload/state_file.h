// The state on the drives. Knows the places of tiles, and which of their versions survive a crash.
//
// There is one file for each path (offload::StatePath), and only this class knows which tile is on
// which path. Owns the table of places: for each tile the slot that the newest durable commit
// names. Format and order of writes: docs/state_format.md.
//
// Threads: Submit, Cancel, Where, WriteSlot and the getters of constants from any thread; all other
// functions one at a time and, except CheckCommit, while no write is in flight (offload::TileStore
// drains first). After a failed commit, or one that was taken back, every call returns that
// failure.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "aio/aio.h"
#include "aio/drive_speed.h"
#include "base/mutex.h"
#include "base/result.h"
#include "base/trace.h"
#include "offload/caller_file.h"
#include "offload/checksum.h"
#include "offload/commit_agreement.h"
#include "offload/commit_record.h"
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
  bool simulated = false;  ///< kept in memory, for simulated drives: gone with the process
  aio::SpeedProbe probe = aio::MeasureFile;  ///< decides shares if there are several drives
};

/// I/O on one part of a tile.
struct PartRequest {
  Part part = Part::kWeight;
  TileId tile{};
  int slot = 0;
  aio::Operation operation = aio::Operation::kRead;
  std::span<std::byte> buffer;  ///< as large as the part; see `from`
  aio::Priority priority = aio::Priority::kParameterRead;
  uint64_t version = 0;     ///< version of the tile, for traces
  Bytes from = {};          ///< begin of `buffer` in the part; it may then be shorter
  bool past_cache = false;  ///< reads from the drive, past the page cache
  std::function<void(const Status&)> on_complete;  ///< as in aio::Request
};

/// The part of the state on one path.
struct PathShare {
  std::string path;           ///< path of its file
  double bytes_a_second = 0;  ///< measured speed; 0: not measured
  double share = 1;           ///< share of the elements, with padding
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

  /// Opens and locks the files of a state, in the order of their paths, to resume from its newest
  /// commit. `layout` must be the one that it was created with. With `at`, resumes from that one: a
  /// newer one, which other ranks lack or which is damaged, is taken back durably before the
  /// function returns, because the slots that it names are written next. Errors: those of Create
  /// and of StateReader::Open; kInvalidArgument for another layout; kNotFound if `at` is not there.
  static Result<OpenedState> Open(const std::vector<std::string>& paths, const ShardLayout& layout,
                                  bool require_direct, std::span<aio::Engine* const> engines,
                                  const std::optional<CommitName>& at = {});

  const Uuid& uuid() const { return uuid_; }
  int slots() const { return shape_.slots; }
  std::vector<PathShare> Shares() const;

  /// From now on `warn` gets one line for each head that was lost while the other one is valid.
  void WarnBy(std::function<void(const std::string& line)> warn) { warn_ = std::move(warn); }
  /// Adds a span to `trace` for each part that is read or written from now on.
  void TraceTo(Trace& trace);
  aio::Ticket Submit(PartRequest request);
  /// Fails submitted I/O that no drive has yet with kCancelled. May be called from any thread but
  /// an engine's.
  void Cancel();
  /// "PATH at offset N", for messages.
  std::string Where(Part part, TileId tile, int slot) const;

  /// Returns the slot to which the next version of a tile is written: never one that a commit
  /// protects.
  int WriteSlot(TileId tile) const EXCLUDES(mutex_);

  /// With one slot, call before the first write after a commit: takes the commit back, durably.
  Status PrepareWrites();
  /// Writes the caller's file of the next commit, durably (offload/caller_file.h): Commit follows
  /// with a text that names it. A simulated drive keeps no such file, as nothing reads its state.
  /// Errors: those of offload::WriteCallerFile and StatePath::CheckPlace.
  Status WriteCallerFile(std::string_view content);
  /// Makes steps 2 to 5 of a commit: everything written so far becomes durable, then the record.
  /// Once the record and the caller's file that it names were read back from the drives, it is the
  /// newest commit and its slots are protected. Fills in the sequence number. `still_good` is asked
  /// just before the record is written; if it returns an error, the commit ends there. `verify` is
  /// called after the record was read back, and says whether the tiles that it names read back,
  /// too. If it finds damage, the commit is taken back, durably, so that the one before is the
  /// newest again; with one slot, where none is before, the error only says what is damaged. After
  /// another error of `verify` the record stays, for the next reader to verify. Precondition: all
  /// tiles that are not frozen have one version. Errors: of I/O and of CheckCommit; those of
  /// `verify`, which then name the commit that stands.
  Status Commit(
      CommitRecord record, const std::function<Status()>& still_good = [] { return Status(); },
      const std::function<Status(const CommitRecord&)>& verify = {});

  /// Takes the newest commit back, durably, because its weights turned out to be worthless. The
  /// commit before it becomes the newest again if this object knows that it is valid: with two
  /// slots, and if no tile was written since. Otherwise the state has no commit. Nothing may be
  /// written afterwards: PrepareWrites and Commit fail. Errors: of I/O, after which either commit
  /// may be the newest; kNotFound if this object made no commit.
  Status TakeBack();

  /// Checks that the newest commit is on the drives: every file is the one at its path, and
  /// complete, and one of its heads, the record and the caller's file read back as they were
  /// written. The contents of tiles are not read. May be called after a failure. Errors: kNotFound
  /// if a file was deleted or there is no commit; kUnavailable if a file was moved away;
  /// kCorruption; kIo.
  Status CheckCommit() const;

 private:
  /// The record of a commit, and the caller's file that it names.
  struct DurableCommit {
    WrittenBytes record;
    uint64_t sequence = 0;
    std::optional<CallerFile> caller;
  };

  StateFile(const Uuid& uuid, const ShardLayout& layout, const StateShape& shape);
  Status CreatePaths(const StateFileOptions& options, std::span<aio::Engine* const> engines);
  Status ChooseShares(const StateFileOptions& options);
  void Protect(const CommitRecord& record, const DurableCommit& made) EXCLUDES(mutex_);
  void AddSpan(PartRequest& request);
  Status SyncAll();
  Status WriteCommit(CommitRecord record, const std::function<Status()>& still_good,
                     const std::function<Status(const CommitRecord&)>& verify);
  Error TakeBackDamaged(uint64_t step, uint64_t sequence, const Error& why);
  Status EraseCommit(uint64_t sequence);
  Status EraseNewest(bool before_stands);
  Status EraseNewerThan(uint64_t sequence, const std::vector<HeldCommit>& held);
  Status CheckHeads() const;
  Status CheckCallerFile(const DurableCommit& commit) const;
  void RemoveUnnamedCallerFile(uint64_t sequence) const;
  Result<DurableCommit> DurableCommitOf(const CommitRecord& record,
                                        std::span<const std::byte> bytes) const;
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
  std::function<void(const std::string& line)> warn_;
  std::deque<PathRows> rows_;  ///< empty without a trace; outlive the requests of the paths
  std::vector<std::unique_ptr<StatePath>> paths_;
  aio::Engine* engine_ = nullptr;  ///< of path 0
  bool simulated_ = false;
  bool created_ = false;  ///< by this object: without a commit, nothing of it stays
  std::vector<double> speeds_;
  std::vector<TilePlace> tiles_;
  Status failure_;
  uint64_t sequence_ = 0;  ///< sequence number of the newest commit; 0: none
  bool commit_stands_ = false;
  DurableCommit newest_;      ///< the newest commit
  uint64_t newest_step_ = 0;  ///< step of that commit
  /// The commit before it, which was valid when the newest was made.
  std::optional<DurableCommit> before_;
  bool made_commit_ = false;                  ///< the newest commit is of this object
  std::atomic<bool> written_since_ = false;   ///< tiles were, since the newest commit
  std::atomic<bool> may_write_tiles_ = true;  ///< no commit was taken back
  mutable Mutex mutex_;
  std::vector<int> committed_slot_ GUARDED_BY(mutex_);  ///< -1: no commit names the tile
};

struct OpenedState {
  std::unique_ptr<StateFile> file;
  CommitRecord commit;
  std::vector<std::string> notices;  ///< heads that were written again, or cannot be
};

/// Returns the version that a commit of these tiles names for all that are not frozen; 0 if all are
/// frozen.
uint64_t VersionOf(const ShardLayout& layout, const CommitRecord& commit);

}  // namespace penstock::offload
