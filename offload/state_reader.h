// Reads a state from outside a training run: a commit and its tiles, verified. For a state of
// several ranks it reads the files of one; offload::WholeState reads those of all.
//
// Uses plain buffered reads, without an engine or alignment. Holds a lock on every file while it
// lives. Threads: one at a time; OffsetOf, Describe, VerifyPart and ReadTile from any.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unshared_fd.h"
#include "offload/caller_file.h"
#include "offload/commit_agreement.h"
#include "offload/commit_record.h"
#include "offload/state_format.h"
#include "offload/state_heads.h"

namespace penstock::offload {

/// How a reader locks the files.
enum class StateLock {
  kShared,  ///< other readers may have the locks, too
  /// No other process may; the files are made durable before they are read. A file that may only be
  /// read has a shared lock, which is all that it can have.
  kExclusive,
  kHeld  ///< not at all: the caller has the locks
};

class StateReader {
 public:
  /// Gives up the locks.
  ~StateReader();
  /// Opens the newest commit. `paths`: the files of all paths, in the order of their index. Errors:
  /// kNotFound (the first file does not exist, was never finished, or is complete and holds no
  /// commit), kUnavailable (in use), kCorruption (no valid header, a file of another state or path,
  /// another file missing), each naming the file; kCorruption or kIo if no commit place holds and
  /// can be read, saying what is wrong with each.
  static Result<std::unique_ptr<StateReader>> Open(const std::vector<std::string>& paths,
                                                   StateLock lock = StateLock::kShared);
  /// The same for one rank of several, which agree on a commit: a state without a commit is opened,
  /// too. Then commits() is empty, and of the files only the first is open.
  static Result<std::unique_ptr<StateReader>> OpenToAgree(const std::vector<std::string>& paths,
                                                          StateLock lock);
  /// Returns the valid commits, the newest first.
  const std::vector<HeldCommit>& commits() const { return commits_; }
  /// From now on reads this commit instead of the newest. Errors: kNotFound if it does not exist;
  /// those of reading.
  Status Use(const CommitName& name);

  const StateHeader& header() const { return header_; }  ///< header of path 0
  const StateGeometry& geometry(size_t path) const { return files_[path].geometry; }
  const ShardLayout& layout() const { return header_.layout; }
  const CommitRecord& commit() const { return commit_; }  ///< the commit that is read
  /// Returns a line of what is wrong in heads and commit places, or cannot be read: a newer commit
  /// may be lost, a head is read from its copy. Empty: nothing is.
  std::string notice() const;
  /// Returns the identity of the state's commits.
  StateIdentity Identity() const { return {header_.uuid, header_.layout}; }
  /// Returns the share of the bytes of all tiles that each path has.
  std::vector<double> Shares() const {
    return PathShares(header_.layout, header_.tiles, files_.size());
  }

  const std::string& path(size_t path) const { return files_[path].path; }
  int fd(size_t path) const { return files_[path].fd.get(); }
  /// Returns everything before commit place 0 of a path's file, as it should be in the file.
  std::vector<std::byte> Head(size_t path) const;
  /// Returns the offset of a committed part in the file of its path.
  FileOffset OffsetOf(Part part, TileId tile) const;
  /// "the weight of tile 3 (module h.0, version 7), PATH at offset N", for messages.
  std::string Describe(Part part, TileId tile) const;
  /// Checks that `bytes` are the part as it was committed. Errors: DamagedPart.
  Status VerifyPart(Part part, TileId tile, std::span<const std::byte> bytes) const;
  /// Returns a line for everything in the heads and commit places that is not as it was written, or
  /// cannot be read, also in bytes that no checksum covers.
  std::vector<std::string> CheckHeads() const;

  /// Returns what the commit says of its caller's file; none: it has no such file. Errors:
  /// kCorruption if no writer puts that there.
  Result<std::optional<CallerFile>> caller_file() const { return CallerFileIn(commit_.json); }
  /// Returns where that is, or would be.
  std::string caller_path() const { return CallerFilePath(path(0), commit_.sequence); }
  /// Reads the caller's file, and has `visit` look at it. Without one, nothing is read. Errors: of
  /// caller_file and VisitCallerFile.
  Status VisitCaller(const CallerFileVisitor& visit) const;
  /// Returns its content, which is empty without one.
  Result<std::string> ReadCaller() const;

  /// Reads one tile's parts as they were committed. Errors: of reading, and of VerifyPart.
  struct TileBytes {
    std::vector<std::byte> weight;
    std::vector<std::byte> record;
  };
  Status ReadTile(TileId tile, TileBytes& bytes) const;

 private:
  /// One path's file.
  struct File {
    std::string path;
    UnsharedFd fd;
    StateGeometry geometry;
    std::string notice;  ///< notice about its heads

    OpenStateFile open() const { return {fd.get(), path}; }
    StateHeader Take(FoundHead head);
  };

  static Result<File> OpenFile(const std::string& path, StateLock lock);
  Status OpenFirst(const std::vector<std::string>& paths, StateLock lock);
  /// "PATH at offset N"
  std::string Where(Part part, TileId tile) const;
  void CheckPlace(const File& file, FileOffset place, std::vector<std::string>& damages) const;
  /// Whether a record can be one of this state, in that place.
  Status CheckCommit(FileOffset place, const CommitRecord& record) const;
  /// What a place of the first file holds. kNotFound: no commit; kCorruption names the offset.
  Result<CommitRecord> ParseCommit(FileOffset place, std::span<const std::byte> bytes) const;
  /// Called before its lock is requested, which this reader would hold itself.
  Status CheckNotOpen(const std::string& path) const;
  /// Whether `paths` are as many as the first of them says, which is path 0.
  Status CheckIsFirst(const std::vector<std::string>& paths) const;
  Result<File> OpenOther(const std::string& path, StateLock lock) const;
  Status OpenOthers(const std::vector<std::string>& paths, StateLock lock);
  /// A commit place of the first file.
  Result<std::vector<std::byte>> ReadPlace(FileOffset place) const;
  Result<CommitRecord> ReadCommit(FileOffset place) const;
  Status ReadCommits();

  std::vector<File> files_;          ///< indexed by path
  StateHeader header_;               ///< header of path 0
  std::vector<HeldCommit> commits_;  ///< the newest first
  CommitRecord commit_;
  /// Set if the first file has a mark: it was never finished.
  std::optional<Error> unfinished_;
  std::string notice_;  ///< notice about the commit places
};

}  // namespace penstock::offload
