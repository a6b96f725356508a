// Anonymous, page-aligned, zero-filled memory: what slabs and device arenas are made of.
#pragma once

#include <cstddef>
#include <span>

#include "base/result.h"
#include "base/units.h"

namespace penstock {

/// Owns one private anonymous mapping. Pages are backed when first touched, and start as zeros.
class Mapping {
 public:
  Mapping() = default;
  /// Maps `size` bytes (rounded up to pages) and asks for huge pages if the kernel has them.
  /// Errors: kOutOfMemory.
  static Result<Mapping> Create(Bytes size);

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
  std::byte* data_ = nullptr;
  Bytes size_;
};

}  // namespace penstock
