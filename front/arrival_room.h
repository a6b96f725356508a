// Host memory in which gradients arrive from a device before they are added where they belong:
// equal pieces, which are taken and given back.
//
// Threads: any. Pieces are given back by another thread than the one that takes them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/mapping.h"
#include "base/mutex.h"
#include "base/result.h"
#include "offload/layout.h"

namespace penstock::front {

class ArrivalRoom {
 public:
  static constexpr size_t kPieces = 8;
  static constexpr Bytes kMostPiece = 4_MiB;

  /// The size of a piece: that of the largest gradient in fp32, if it is below kMostPiece.
  static Bytes PieceFor(const offload::ShardLayout& layout);
  static Bytes Need(const offload::ShardLayout& layout) { return PieceFor(layout) * kPieces; }

  /// Errors: kOutOfMemory.
  Status Create(const offload::ShardLayout& layout) EXCLUDES(mutex_);
  /// Waits for a piece.
  std::span<std::byte> Take() EXCLUDES(mutex_);
  void GiveBack(std::span<std::byte> piece) EXCLUDES(mutex_);
  /// Returns all of it.
  std::span<std::byte> bytes() const { return {mapping_.data(), mapping_.size().value}; }

 private:
  Mapping mapping_;
  Mutex mutex_;
  CondVar given_back_;
  std::vector<std::span<std::byte>> free_ GUARDED_BY(mutex_);
};

}  // namespace penstock::front
