// Host memory in which gradients arrive from a device before they are added up: a ring of bytes. A
// caller that takes a piece waits only while the room is full.
//
// Threads: one takes pieces; another gives them back, in the order in which they were taken.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/mapping.h"
#include "base/mutex.h"
#include "base/result.h"
#include "offload/layout.h"

namespace penstock::front {

class ArrivalRoom {
 public:
  /// A piece takes at most this share of the room, so that some are added while others arrive.
  static constexpr uint64_t kMinPieces = 8;
  static constexpr Bytes kMaxPiece = 32_MiB;
  /// Pieces are rounded up to this, which every element's size divides.
  static constexpr Bytes kAlignment{256};

  /// The smallest room: some pieces of 4 MiB, or as large as the largest gradient in fp32.
  static Bytes Minimum(const offload::ShardLayout& layout);
  /// The largest useful room: all gradients of a micro-batch in the dtypes of their weights, if
  /// several micro-batches are added up; the smallest room otherwise, as then few gradients pass
  /// through it.
  static Bytes Maximum(const offload::ShardLayout& layout, uint64_t micro_batches);

  /// `size`: a multiple of kAlignment; 0 if nothing is trained. Errors: kOutOfMemory.
  Status Create(Bytes size) EXCLUDES(mutex_);
  /// Returns the next piece, of at most `wanted` bytes, rounded up to kAlignment, and at least one
  /// element. Waits while the room is full.
  std::span<std::byte> Take(Bytes wanted) EXCLUDES(mutex_);
  /// Gives back the oldest piece that is still taken.
  void GiveBack(std::span<std::byte> piece) EXCLUDES(mutex_);
  /// Returns how often Take waited.
  uint64_t waits() const EXCLUDES(mutex_);
  /// Returns all of it.
  std::span<std::byte> bytes() const { return {mapping_.data(), mapping_.size().value}; }

 private:
  Mapping mapping_;
  uint64_t size_ = 0;
  mutable Mutex mutex_;
  CondVar given_back_;
  // Count all bytes ever taken and given back; modulo the size they are places in the ring.
  uint64_t taken_ GUARDED_BY(mutex_) = 0;
  uint64_t given_ GUARDED_BY(mutex_) = 0;
  uint64_t waits_ GUARDED_BY(mutex_) = 0;
};

}  // namespace penstock::front
