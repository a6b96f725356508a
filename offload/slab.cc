#include "offload/slab.h"

#include "base/check.h"

namespace penstock::offload {

Result<Slab> Slab::Create(Bytes size) {
  PENSTOCK_ASSIGN(Mapping mapping, Mapping::Create(AlignUp(size, kSlabAlignment)));
  return Slab(std::move(mapping));
}

std::span<std::byte> Slab::Cut(Bytes size) {
  const Bytes rounded = AlignUp(size, kSlabAlignment);
  PENSTOCK_CHECK(cut_ + rounded <= mapping_.size(), "cut of {} beyond the slab's {}", rounded.value,
                 mapping_.size().value);
  const std::span<std::byte> part(mapping_.data() + cut_.value, size.value);
  cut_ += rounded;
  return part;
}

void BlockLease::Reset() {
  if (data_ != nullptr) pool_->free_.push_back(data_);
  pool_ = nullptr;
  data_ = nullptr;
}

BlockPool::BlockPool(Slab& slab, Bytes block, size_t count)
    : size_(count), memory_(slab.Cut(AlignUp(block, kSlabAlignment) * count)) {
  free_.reserve(count);
  const size_t stride = AlignUp(block, kSlabAlignment).value;
  for (size_t i = 0; i < count; ++i) free_.push_back(memory_.data() + stride * i);
}

BlockLease BlockPool::TryTake() {
  if (free_.empty()) return {};
  std::byte* data = free_.back();
  free_.pop_back();
  return {this, data};
}

}  // namespace penstock::offload
