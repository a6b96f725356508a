#include "front/arrival_room.h"

#include <algorithm>

#include "base/dtype.h"

namespace penstock::front {

Bytes ArrivalRoom::PieceFor(const offload::ShardLayout& layout) {
  uint64_t largest = 0;
  for (const offload::ModuleLayout& module : layout.model.modules) {
    for (const offload::TensorLayout& tensor : module.tensors) {
      if (!layout.model.group(tensor.group).frozen) largest = std::max(largest, tensor.elements);
    }
  }
  return std::min(kMostPiece, AlignUp(SizeOf(DType::kFloat32) * largest, 4_KiB));
}

Status ArrivalRoom::Create(const offload::ShardLayout& layout) {
  const Bytes piece = PieceFor(layout);
  if (piece.value == 0) return {};  // nothing is trained
  PENSTOCK_ASSIGN(mapping_, Mapping::Create(piece * kPieces));
  MutexLock lock(mutex_);
  for (size_t i = 0; i < kPieces; ++i) {
    free_.emplace_back(mapping_.data() + (piece * i).value, piece.value);
  }
  return {};
}

std::span<std::byte> ArrivalRoom::Take() {
  MutexLock lock(mutex_);
  while (free_.empty()) given_back_.Wait(mutex_);
  const std::span<std::byte> piece = free_.back();
  free_.pop_back();
  return piece;
}

void ArrivalRoom::GiveBack(std::span<std::byte> piece) {
  MutexLock lock(mutex_);
  free_.push_back(piece);
  given_back_.NotifyOne();
}

}  // namespace penstock::front
