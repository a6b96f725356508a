// A drive with a cache that loses writes, over any other drive: for tests of crashes.
//
// A write is complete as soon as it is submitted, and stays in memory until a sync of its file. The
// sync writes what had been reported complete before it to the file and then goes to the base
// drive. Reads of the same drive see every write. A sync that fails keeps a random choice of these
// writes and loses the others, as the kernel does with pages that it could not write. At the end
// (destruction, or the block that the plan names as the crash) a random choice of the writes that
// no sync covered reaches the files, in random order, some only up to a boundary between two units
// of their alignment. After a crash every block fails with EIO.
//
// Files are told apart by device and inode, so that two descriptors of one file see each other's
// writes; the drive keeps its own descriptor of each, so a file may be closed before the end.
//
// Owns the base drive. Threads: see aio/drive.h.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "aio/layered_drive.h"
#include "base/unique_fd.h"

namespace penstock::aio {

class ForgetfulDrive final : public LayeredDrive {
 public:
  /// It uses the plan's seed, crash_at_block and crash_at_sync.
  ForgetfulDrive(std::unique_ptr<Drive> base, const FaultPlan& plan, int queue_depth);
  ~ForgetfulDrive() override;

  void Submit(const BlockOperation& block) override;
  void Reap(bool wait, std::vector<BlockResult>& results) override;

  /// A sync of `fd` failed: of what it would have covered a random choice is lost.
  void LoseSome(int fd);

 private:
  struct Write {
    uint64_t sequence = 0;
    bool flushed = false;  ///< kept for reads that may have missed it in the file
    uint64_t offset = 0;
    std::vector<std::byte> data;
    Bytes alignment;
  };
  struct CachedFile {
    UniqueFd fd;
    std::vector<Write> writes;  ///< not synced, in the order of submission
  };
  using FileId = std::pair<uint64_t, uint64_t>;  ///< device and inode

  /// Returns null for an invalid descriptor.
  CachedFile* Find(int fd);
  /// The result of a write.
  int64_t Keep(const BlockOperation& block);
  /// Writes what a sync of the file covers: 0 or a negative errno.
  int64_t Flush(int fd);
  /// A sync submitted now covers it: the caller was told of it, and it is in the cache alone.
  bool IsCovered(const Write& write) const { return !write.flushed && write.sequence < reported_; }
  void DropFlushed();
  /// The result of a read, with what the cache has put over what the base drive found.
  int64_t Overlay(const BlockOperation& read, int64_t result);
  /// Whether this block is the one that the plan names.
  bool CrashesAt(const BlockOperation& block);
  void Forget();

  const uint64_t seed_;
  const std::optional<uint64_t> crash_at_block_;
  const std::optional<uint64_t> crash_at_sync_;
  uint64_t blocks_ = 0;
  uint64_t syncs_ = 0;
  uint64_t next_sequence_ = 0;
  uint64_t loss_draws_ = 0;  ///< random numbers used up by LoseSome
  uint64_t reported_ = 0;    ///< writes with a lower sequence were reported complete
  bool crashed_ = false;
  std::map<FileId, CachedFile> files_;
  std::vector<BlockOperation> in_base_;  ///< indexed by slot
  size_t reads_in_base_ = 0;
  bool has_flushed_ = false;  ///< some write is
  std::vector<BlockResult> ready_;
};

}  // namespace penstock::aio
