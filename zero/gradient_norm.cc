#include "zero/gradient_norm.h"

#include <cmath>
#include <utility>

#include "base/check.h"

namespace penstock::zero {

GradientNorm::GradientNorm(const offload::ShardLayout& layout) {
  uint64_t blocks = 0;
  for (const offload::TileId tile : layout.Tiles()) {
    offsets_.push_back(blocks);
    if (layout.frozen(tile)) continue;
    blocks += layout.tile(tile).elements / kBlockElements;
    ++tiles_;
  }
  missing_ = tiles_;
  offsets_.push_back(blocks);
  sums_.resize(blocks);
}

std::span<double> GradientNorm::Sums(offload::IdRange<offload::TileId> tiles) {
  const size_t first = offload::Index(tiles[0]);
  const uint64_t begin = offsets_[first];
  return std::span(sums_).subspan(begin, offsets_[first + tiles.size()] - begin);
}

void GradientNorm::Arrived(bool finite, size_t tiles) {
  MutexLock lock(mutex_);
  PENSTOCK_CHECK(missing_ >= tiles);
  missing_ -= tiles;
  finite_ = finite_ && finite;
  arrived_.NotifyAll();
}

GradientNorm::Blocks GradientNorm::WaitForBlocks() {
  MutexLock lock(mutex_);
  while (missing_ > 0) arrived_.Wait(mutex_);
  missing_ = tiles_;
  return {.sums = sums_, .finite = std::exchange(finite_, true)};
}

GradientNorm::Value GradientNorm::NormOf(const Blocks& blocks) {
  // Tiles of any size are in the order of the flat index.
  double sum = 0;
  for (const double block : blocks.sums) sum += block;
  return {.norm = std::sqrt(sum), .finite = blocks.finite};
}

void GradientNorm::Discard(size_t tiles) {
  MutexLock lock(mutex_);
  while (tiles_ - missing_ < tiles) arrived_.Wait(mutex_);
  missing_ = tiles_;
  finite_ = true;
}

}  // namespace penstock::zero
