// Reads a commit's parts back from the drives, past the page cache, and compares checksums.
//
// Parts are read in pieces through the engines of the state, after all other I/O, into a room that
// does not grow with tiles or threads. Several threads each read a part at a time and hash what
// arrives, so that drives always have reads. The tiles on the drives must not change meanwhile;
// other parts of the state may be read.
//
// Owns the room; the file outlives the verifier. Threads: Verify from one at a time, the others
// from any.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "base/mapping.h"
#include "base/result.h"
#include "offload/commit_record.h"
#include "offload/layout.h"
#include "offload/state_file.h"

namespace penstock::offload {

class CommitVerifier {
 public:
  /// Returns what a verifier of these tiles takes of the host: a multiple of the alignment of
  /// state files, at most 4 MiB, and no more than the largest tile or 32 KiB.
  static Bytes Room(const ShardLayout& layout);
  /// `threads`: 1 or more; at most four of them work. `progressed` is called for each piece that
  /// was read, on any thread; may be empty. Errors: kOutOfMemory.
  static Result<std::unique_ptr<CommitVerifier>> Create(const ShardLayout& layout, StateFile& file,
                                                        int threads,
                                                        std::function<void()> progressed = {});

  /// Whether a part is to be read.
  using Selection = std::function<bool(TileId tile, Part part)>;
  /// Reads the selected parts of all tiles, as `tiles` name them, on the calling thread and others,
  /// which run on the same CPUs. Errors: of the first part, in the order of tiles, that cannot be
  /// read or has another checksum; all I/O has ended then.
  Status Verify(std::span<const CommittedTile> tiles, const Selection& selection);

  /// Returns the bytes of all reads so far, those under way included.
  uint64_t submitted_bytes() const { return submitted_; }

 private:
  class Reader;
  struct Work;

  CommitVerifier(const ShardLayout& layout, StateFile& file, int threads,
                 std::function<void()> progressed, Mapping room);

  const ShardLayout& layout_;
  StateFile& file_;
  const int threads_;
  const std::function<void()> progressed_;
  const Mapping room_;
  std::atomic<uint64_t> submitted_ = 0;
};

}  // namespace penstock::offload
