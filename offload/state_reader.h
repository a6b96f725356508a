// Reads a state file from outside a training run: the newest commit and its tiles, verified.
//
// Plain buffered reads: it needs no engine and no alignment. Holds a shared lock while it lives.
// Threads: one at a time.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "offload/state_format.h"

namespace penstock::offload {

class StateReader {
 public:
  /// Errors: kNotFound (no file, or no commit in it), kUnavailable (in use), kCorruption (no valid
  /// header, or commit places that both do not hold), each naming the path.
  static Result<std::unique_ptr<StateReader>> Open(const std::string& path);

  const Layout& layout() const { return header_.layout; }
  const CommitRecord& commit() const { return commit_; }
  const std::string& path() const { return path_; }

  /// One tile's parts as they were committed. kCorruption names the tile, its module and the
  /// offset.
  struct TileBytes {
    std::vector<std::byte> weight;
    std::vector<std::byte> record;
  };
  Status ReadTile(TileId tile, TileBytes& bytes) const;

 private:
  StateReader(std::string path, UniqueFd fd) : path_(std::move(path)), fd_(std::move(fd)) {}
  Status ReadHead();
  Status ReadCommit();
  Status ReadAt(FileOffset offset, std::span<std::byte> bytes) const;

  std::string path_;
  UniqueFd fd_;
  StateHeader header_;
  CommitRecord commit_;
};

}  // namespace penstock::offload
