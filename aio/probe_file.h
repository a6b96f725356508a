// The file for measuring a drive, and the memory of its blocks.
//
// The file has no name: it is unlinked as soon as it is open, so the kernel frees it with the
// process, however that ends. The whole file is reserved and then written once: reading blocks that
// were never written costs the drive nothing, and writing them the first time costs the file system
// extra. All bytes are random, so that a drive or file system that compresses gains nothing.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "aio/aio.h"
#include "aio/closed_loop.h"
#include "base/mapping.h"
#include "base/result.h"
#include "base/units.h"

namespace penstock::aio {

class ProbeFile {
 public:
  /// A file of `size` in `folder`, O_DIRECT, and `buffer_bytes` of memory with random bytes. Errors
  /// (nothing is left behind): kNotFound, kPermission, kUnavailable (no O_DIRECT), kOutOfSpace with
  /// free and needed bytes, kOutOfMemory.
  static Result<ProbeFile> Create(const std::string& folder, Bytes size, Bytes buffer_bytes);

  /// Opens an existing file as it is, for a benchmark that shares it with another program;
  /// `direct`: with O_DIRECT. Errors: of opening it; kOutOfMemory.
  static Result<ProbeFile> Open(const std::string& path, bool direct, Bytes buffer_bytes);

  /// Writes all of it with an engine of its own, and syncs. Errors: of the engine and the drive;
  /// kCancelled if `stop` returned true; kUnavailable if not every block could be started within
  /// `time`.
  Status Fill(const EngineOptions& options, Seconds time, const StopRequested& stop);

  /// How a loop goes through the file.
  struct Pass {
    Bytes block_size;
    int queue_depth = 1;
    Direction direction = Direction::kRead;
    LoopLimit limit;
  };
  /// A closed loop from where the last one ended, so that none finds its blocks in a cache of the
  /// drive. Errors: of the drive.
  Result<ClosedLoop::Outcome> Run(Engine& engine, const Pass& pass, const StopRequested& stop);

  const File& file() const { return file_; }
  Bytes size() const { return size_; }
  std::span<std::byte> buffers() const { return {buffers_.data(), buffers_.size().value}; }
  /// Bytes that were written to it so far.
  Bytes written() const { return written_; }

 private:
  ProbeFile() = default;

  File file_;
  Bytes size_;
  Mapping buffers_;
  Bytes position_;  ///< begin of the next loop
  Bytes written_;
};

}  // namespace penstock::aio
