// Reads a state from outside a training run: a commit and its tiles, verified. Of a state of
// several ranks it reads the files of one; offload::WholeState reads those of all.
//
// Uses plain buffered reads, without an engine or alignment. Holds a lock on every file while it
// lives. Threads: one at a time; OffsetOf, Describe, VerifyPart and ReadTile from any.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "offload/commit_agreement.h"
#include "offload/commit_record.h"
#include "offload/state_format.h"

namespace penstock::offload {

/// How a reader locks the files.
enum class StateLock {
  kShared,     ///< other readers may have the locks, too
  kExclusive,  ///< nobody else may; the files are made durable before they are read
  kHeld        ///< not at all: the caller has the locks
};

class StateReader {
 public:
  /// Gives up the locks.
  ~StateReader();
  /// Opens the newest commit. `paths`: the files of all paths, in the order of their index. Errors:
  /// kNotFound (the first file does not exist, was never finished, or is complete and holds no
  /// commit), kUnavailable (in use), kCorruption (no valid header, a file of another state or path,
  /// another file missing, both commit places invalid), each naming the file.
  static Result<std::unique_ptr<StateReader>> Open(const std::vector<std::string>& paths,
                                                   StateLock lock = StateLock::kShared);
  /// The same for one rank of several, which agree on a commit: a state without a commit is opened,
  /// too. Then commits() is empty, and of the files only the first is open.
  static Result<std::unique_ptr<StateReader>> OpenToAgree(const std::vector<std::string>& paths,
                                                          StateLock lock);
  /// Returns the valid commits, the newest first.
  const std::vector<HeldCommit>& commits() const { return commits_; }
  /// From now on reads this commit instead of the newest. Errors: kNotFound if it is not there; of
  /// reading.
  Status Use(const CommitName& name);

  const StateHeader& header() const { return header_; }  ///< of path 0
  const StateGeometry& geometry(size_t path) const { return files_[path].geometry; }
  const ShardLayout& layout() const { return header_.layout; }
  const CommitRecord& commit() const { return commit_; }  ///< the one that is read
  /// Returns a line if the other commit place is invalid, because a newer commit may be lost; else
  /// an empty one.
  const std::string& notice() const { return notice_; }
  /// Returns the identity of the state's commits.
  StateIdentity Identity() const { return {header_.uuid, header_.layout}; }
  /// Returns the share of the bytes of all tiles that each path has.
  std::vector<double> Shares() const {
    return PathShares(header_.layout, header_.tiles, files_.size());
  }

  const std::string& path(size_t path) const { return files_[path].path; }
  int fd(size_t path) const { return files_[path].fd.get(); }
  /// Returns everything before commit place 0 of a path's file, as it is in the file.
  Result<std::vector<std::byte>> ReadHead(size_t path) const { return ReadHeadBytes(files_[path]); }
  /// Returns the offset of a committed part in the file of its path.
  FileOffset OffsetOf(Part part, TileId tile) const;
  /// "the weight of tile 3 (module h.0, version 7), PATH at offset N", for messages.
  std::string Describe(Part part, TileId tile) const;
  /// Checks that `bytes` are the part as it was committed. Errors: DamagedPart.
  Status VerifyPart(Part part, TileId tile, std::span<const std::byte> bytes) const;
  /// Returns a line for everything in the heads and commit places that is not as it was written,
  /// also in bytes that no checksum covers. The notice is one of the lines.
  Result<std::vector<std::string>> CheckHeads() const;

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
    UniqueFd fd;
    StateGeometry geometry;
  };

  static Result<File> OpenFile(const std::string& path, StateLock lock, StateHeader& header);
  static Status ReadAt(const File& file, FileOffset offset, std::span<std::byte> bytes);
  static Result<Bytes> SizeOfFile(const File& file);
  static Result<std::vector<std::byte>> ReadHeadBytes(const File& file);
  /// "PATH at offset N"
  std::string Where(Part part, TileId tile) const;
  static Result<StateHeader> ParseHead(const File& file, std::span<const std::byte> head);
  Status CheckPlace(const File& file, FileOffset place, std::vector<std::string>& damages) const;
  /// Adds a line where bytes from `begin` on, whose checksums hold, are not those expected.
  static void Compare(const char* what, const File& file, FileOffset begin,
                      std::span<const std::byte> found, std::span<const std::byte> expected,
                      std::vector<std::string>& damages);
  /// Whether a record can be one of this state, in that place.
  Status CheckCommit(FileOffset place, const CommitRecord& record) const;
  /// What a place of the first file holds. kNotFound: no commit; kCorruption names the offset.
  Result<CommitRecord> ParseCommit(FileOffset place, std::span<const std::byte> bytes) const;
  /// Before its lock is asked for, which this reader would have itself.
  Status CheckNotOpen(const std::string& path) const;
  /// Whether `paths` are as many as the first of them says, which is path 0.
  Status CheckIsFirst(const std::vector<std::string>& paths) const;
  Result<File> OpenOther(const std::string& path, StateLock lock, StateHeader& header) const;
  Status OpenOthers(const std::vector<std::string>& paths, StateLock lock);
  /// A commit place of the first file.
  Result<std::vector<std::byte>> ReadPlace(FileOffset place) const;
  Status ReadCommits();

  std::vector<File> files_;          ///< by index of the path
  StateHeader header_;               ///< of path 0
  std::vector<HeldCommit> commits_;  ///< the newest first
  CommitRecord commit_;
  std::string notice_;
};

}  // namespace penstock::offload
