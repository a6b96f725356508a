// All pinned host memory: one mapping, cut at start into pools of equal blocks.
//
// No size is rounded up to a power of two, and no block has to be as large as the largest tensor. A
// block taken from a pool is a lease that releases itself. Not thread-safe: the owner of the pools
// serialises all calls, including releases (offload::TileStore holds its mutex).
#pragma once

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "base/mapping.h"
#include "base/result.h"
#include "base/units.h"

namespace penstock::offload {

/// Every cut is rounded up to this, which fits O_DIRECT on every drive met so far.
inline constexpr Bytes kSlabAlignment = 4_KiB;

class Slab {
 public:
  /// Errors: kOutOfMemory.
  static Result<Slab> Create(Bytes size);

  /// Like Mapping::PreferNodes: call it before anything is written.
  Status PreferNodes(std::span<const int> nodes) { return mapping_.PreferNodes(nodes); }

  /// Cuts off the next `size` bytes, rounded up to kSlabAlignment. Cutting more than was created is
  /// a broken contract: the plan of the budget sums the same rounded sizes.
  std::span<std::byte> Cut(Bytes size);
  /// Returns the whole slab, cut or not.
  std::span<std::byte> bytes() const { return {mapping_.data(), mapping_.size().value}; }

 private:
  explicit Slab(Mapping mapping) : mapping_(std::move(mapping)) {}

  Mapping mapping_;
  Bytes cut_;
};

class BlockPool;

/// One block of a pool, given back when the lease ends. Must not outlive the pool.
class BlockLease {
 public:
  BlockLease() = default;
  BlockLease(BlockLease&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)), data_(std::exchange(other.data_, nullptr)) {}
  /// Gives back the block that this lease held at once, not with `other`.
  BlockLease& operator=(BlockLease&& other) noexcept {
    BlockLease taken(std::move(other));
    std::swap(pool_, taken.pool_);
    std::swap(data_, taken.data_);
    return *this;
  }
  ~BlockLease() { Reset(); }

  bool valid() const { return data_ != nullptr; }
  std::byte* data() const { return data_; }
  void Reset();

 private:
  friend class BlockPool;
  BlockLease(BlockPool* pool, std::byte* data) : pool_(pool), data_(data) {}

  BlockPool* pool_ = nullptr;
  std::byte* data_ = nullptr;
};

class BlockPool {
 public:
  /// Cuts `count` blocks of `block` bytes from the slab.
  BlockPool(Slab& slab, Bytes block, size_t count);
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  /// Returns an invalid lease if all blocks are taken.
  BlockLease TryTake();
  size_t size() const { return size_; }
  /// Returns the memory of all blocks.
  std::span<std::byte> memory() const { return memory_; }
  size_t free() const { return free_.size(); }

 private:
  friend class BlockLease;

  size_t size_;
  std::span<std::byte> memory_;
  std::vector<std::byte*> free_;
};

}  // namespace penstock::offload
