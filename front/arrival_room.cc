#include "front/arrival_room.h"

#include <algorithm>

#include "base/check.h"
#include "base/dtype.h"

namespace penstock::front {
namespace {

constexpr Bytes kPage = 4_KiB;
constexpr Bytes kMinPiece = 4_MiB;

/// Calls `see` with dtype and number of elements of each trained tensor.
template <typename See>
void ForEachTrained(const offload::ShardLayout& layout, See see) {
  for (const offload::ModuleLayout& module : layout.model.modules) {
    for (const offload::TensorLayout& tensor : module.tensors) {
      const offload::GroupLayout& group = layout.model.group(tensor.group);
      if (group.frozen) continue;
      see(static_cast<DType>(group.planes.weight().encoding), tensor.elements);
    }
  }
}

}  // namespace

Bytes ArrivalRoom::Minimum(const offload::ShardLayout& layout) {
  uint64_t largest = 0;
  ForEachTrained(layout, [&](DType, uint64_t elements) { largest = std::max(largest, elements); });
  return std::min(kMinPiece, AlignUp(SizeOf(DType::kFloat32) * largest, kPage)) * kMinPieces;
}

Bytes ArrivalRoom::Maximum(const offload::ShardLayout& layout, uint64_t micro_batches) {
  const Bytes minimum = Minimum(layout);
  if (micro_batches == 1) return minimum;
  Bytes all;
  ForEachTrained(layout, [&](DType dtype, uint64_t elements) {
    all += AlignUp(SizeOf(dtype) * elements, kAlignment);
  });
  return std::max(minimum, AlignUp(all, kPage));
}

Status ArrivalRoom::Create(Bytes size) {
  PENSTOCK_CHECK(size.value % kAlignment.value == 0);
  PENSTOCK_ASSIGN(mapping_, Mapping::Create(size));
  size_ = size.value;
  return {};
}

std::span<std::byte> ArrivalRoom::Take(Bytes wanted) {
  PENSTOCK_CHECK(size_ > 0 && wanted.value > 0);
  const Bytes most = std::clamp(Bytes{size_ / kMinPieces}, kAlignment, kMaxPiece);
  MutexLock lock(mutex_);
  const uint64_t begin = taken_ % size_;
  const uint64_t piece = std::min(AlignUp(std::min(wanted, most), kAlignment).value, size_ - begin);
  if (taken_ + piece - given_ > size_) ++waits_;
  while (taken_ + piece - given_ > size_) given_back_.Wait(mutex_);
  taken_ += piece;
  return {mapping_.data() + begin, piece};
}

void ArrivalRoom::GiveBack(std::span<std::byte> piece) {
  MutexLock lock(mutex_);
  PENSTOCK_CHECK(
      piece.data() == mapping_.data() + given_ % size_ && given_ + piece.size() <= taken_,
      "a piece was given back before those that were taken before it");
  given_ += piece.size();
  given_back_.NotifyOne();
}

uint64_t ArrivalRoom::waits() const {
  MutexLock lock(mutex_);
  return waits_;
}

}  // namespace penstock::front
