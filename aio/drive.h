// A way of doing I/O, as engines use it: takes raw blocks, and gives back raw results.
//
// A Drive interprets nothing: results are the kernel's. Blocks are named by a slot, a number in [0,
// queue_depth) that is in use from Submit until its result was reaped, so that at most queue_depth
// blocks are ever in a drive. Descriptors and buffers belong to the caller and stay valid until
// then.
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
  Bytes alignment;  ///< parts of the block are multiples of this; 1 through the page cache
  uint32_t slot = 0;
  std::span<std::byte> memory;       ///< the file's memory, if it has some (aio::File::InMemory)
  const Request* request = nullptr;  ///< the block's request, for messages; outlives the block
};

/// The result: the bytes transferred, or a negative errno.
struct BlockResult {
  uint32_t slot = 0;
  int64_t result = 0;
};

class Drive {
 public:
  virtual ~Drive() = default;

  /// Accepts a block. It may be held back until the next Reap, so that a batch is one system call.
  virtual void Submit(const BlockOperation& block) = 0;
  /// Appends results to `results`. With `wait` it blocks until there is one, but may return without
  /// one, and returns after every Wake. Without `wait` it only polls.
  virtual void Reap(bool wait, std::vector<BlockResult>& results) = 0;
  /// Makes the running or the next Reap return; of several that run, one. Any thread.
  virtual void Wake() = 0;

  /// Same as Engine's. Returns a line that says what was registered. Errors: kUnavailable if it
  /// cannot be.
  virtual Result<std::string> RegisterBuffers(std::span<const std::span<std::byte>> memory);
  /// Same as Engine's. Errors: kUnavailable if the drive cannot serve the file at all.
  virtual Status RegisterFile(const File& /*file*/) { return {}; }
  virtual void UnregisterFile(int /*fd*/) {}

  /// Returns how many threads should use the drive.
  virtual int thread_count() const { return 1; }
  virtual const std::string& name() const = 0;
};

/// Makes a drive on the thread that will use it. `serving` is held whenever the drive is used,
/// except for Wake.
using DriveFactory = std::function<Result<std::unique_ptr<Drive>>(Mutex& serving)>;

}  // namespace penstock::aio
