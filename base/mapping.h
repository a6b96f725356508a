// Page-aligned memory, for slabs, device arenas and files in memory.
#pragma once

#include <cstddef>
#include <span>

#include "base/result.h"
#include "base/units.h"

namespace penstock {

/// Owns one mapping: private, anonymous and zero-filled, or of a file. Pages are backed when first
/// touched.
class Mapping {
 public:
  Mapping() = default;
  /// Maps `size` bytes (rounded up to pages) and asks for huge pages if the kernel has them.
  /// Errors: kOutOfMemory.
  static Result<Mapping> Create(Bytes size);
  /// Maps the first `size` bytes of a file, for reading and writing, shared. The file must not
  /// become shorter while it is mapped: what is beyond its end is SIGBUS. Errors: kOutOfMemory.
  static Result<Mapping> OfFile(int fd, Bytes size);

  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();

  /// Asks for pages on these NUMA nodes, interleaved if there are several, and elsewhere if those
  /// are full. Affects pages that were not touched yet. Errors: of mbind, which sandboxes often
  /// refuse.
  Status PreferNodes(std::span<const int> nodes);

  std::byte* data() const { return data_; }
  Bytes size() const { return size_; }

 private:
  static Result<Mapping> Map(Bytes size, int flags, int fd);

  std::byte* data_ = nullptr;
  Bytes size_;
};

}  // namespace penstock
