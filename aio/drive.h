// What an engine needs from a way of doing I/O: take raw blocks, give back raw results.
//
// A Drive interprets nothing: results are what the kernel said. Blocks are named by a slot, a
// number in [0, queue_depth) that is in use from Submit until its result was reaped, so that at
// most queue_depth blocks are ever in a drive. Descriptors and buffers belong to the caller and
// stay valid until then.
//
// Threads: a drive is made and destroyed on one thread, the engine's first. `thread_count` threads
// of the engine use it, one at a time: the one that holds the engine's serving mutex. Reap may
// release that mutex while it waits or carries out a block, and takes it back before it returns;
// another thread may enter Submit and Reap meanwhile. Only Wake may be called without it, from any
// thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "aio/aio.h"
#include "base/mutex.h"
#include "base/result.h"
#include "base/units.h"

namespace penstock::aio {

/// One transfer (or sync, which has no data) that a drive is to try once.
struct BlockOperation {
  Operation operation = Operation::kRead;
  int fd = -1;
  FileOffset offset;
  std::span<std::byte> data;
  Bytes alignment;  ///< what parts of the block must be multiples of; 1 through the page cache
  uint32_t slot = 0;
};

/// What came of it: the bytes transferred, or a negative errno.
struct BlockResult {
  uint32_t slot = 0;
  int64_t result = 0;
};

class Drive {
 public:
  virtual ~Drive() = default;

  /// Accepts a block. It may be held back until the next Reap, so that a batch is one system call.
  virtual void Submit(const BlockOperation& block) = 0;
  /// Appends results to `results`. With `wait` it blocks until there is one, but may return
  /// without, and returns after every Wake; otherwise it only looks.
  virtual void Reap(bool wait, std::vector<BlockResult>& results) = 0;
  /// Makes the running or the next Reap return; of several that run, one. Any thread.
  virtual void Wake() = 0;

  /// As Engine's; a line that says what was registered. Errors: kUnavailable where it cannot be.
  virtual Result<std::string> RegisterBuffers(std::span<const std::span<std::byte>> memory);
  /// As Engine's. Errors: kUnavailable where the drive cannot serve the file at all.
  virtual Status RegisterFile(const File& /*file*/) { return {}; }
  virtual void UnregisterFile(int /*fd*/) {}

  /// How many threads the drive wants to be used by.
  virtual int thread_count() const { return 1; }
  virtual const std::string& name() const = 0;
};

/// Makes a drive on the thread that will use it. `serving` is held wherever the drive is used, but
/// for Wake.
using DriveFactory = std::function<Result<std::unique_ptr<Drive>>(Mutex& serving)>;

}  // namespace penstock::aio
