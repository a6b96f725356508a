// The file that `penstock tune` measures with, and the memory that its blocks lie in.
//
// The file has no name: it is unlinked as soon as it is open, so the kernel frees it with the
// process, however that ends. All of it is reserved and then written once, because reading what was
// never written costs the drive nothing, and writing it the first time costs the file system extra.
// All bytes are random, so that a drive or file system that compresses gains nothing.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>

#include "aio/aio.h"
#include "base/mapping.h"
#include "base/result.h"
#include "base/units.h"

namespace penstock::train {

/// Whether the command was interrupted. Called often and from the engine's threads as well.
using StopRequested = std::function<bool()>;

class TuneFile {
 public:
  /// A file of `size` in `folder`, O_DIRECT, and `buffer_bytes` of memory with random bytes. Errors
  /// (nothing is left behind): kNotFound, kPermission, kUnavailable (no O_DIRECT), kOutOfSpace with
  /// free and needed bytes, kOutOfMemory.
  static Result<TuneFile> Create(const std::string& folder, Bytes size, Bytes buffer_bytes);

  /// A file that is there, as it is, for a benchmark that shares it with another program; `direct`:
  /// with O_DIRECT. Errors: of opening it; kOutOfMemory.
  static Result<TuneFile> Open(const std::string& path, bool direct, Bytes buffer_bytes);

  /// Writes all of it and syncs. Errors: of the drive; kCancelled where `stop` said so.
  Status Fill(aio::Engine& engine, const StopRequested& stop);

  const aio::File& file() const { return file_; }
  Bytes size() const { return size_; }
  std::span<std::byte> buffers() const { return {buffers_.data(), buffers_.size().value}; }

  /// Where the next probe begins. Each goes on where the one before it ended, so that none finds
  /// its blocks in a cache of the drive.
  Bytes position;
  /// What was written to it so far.
  Bytes written;

 private:
  TuneFile() = default;

  aio::File file_;
  Bytes size_;
  Mapping buffers_;
};

}  // namespace penstock::train
