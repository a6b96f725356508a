// The passes over a tile: the update, and the first pass of rules that take two.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/check.h"
#include "zero/states/optimizer_driver.h"
#include "zero/states/tile_planes.h"

namespace penstock::zero {
namespace {

using kernels::kChunkElements;
using offload::TileChecksums;
using offload::TileHasher;
using offload::TileUpdate;

bool Matches(const TileUpdate& update, const TileChecksums& found) {
  return update.expected_weight.value_or(found.weight) == found.weight &&
         update.expected_record.value_or(found.record) == found.record;
}

/// Calls work(begin, count) with each chunk of a tile, after hashing it if the tile is to be
/// verified. Returns false if the bytes are not the expected ones.
template <typename Work>
bool ForEachVerifiedChunk(const offload::ShardLayout& layout, const TileUpdate& update,
                          TileHasher& before, Work work) {
  const uint64_t elements = layout.tile(update.tile).elements;
  const bool verify = update.expected_weight || update.expected_record;
  before.Reset(update.seed_before, layout.planes(update.tile), elements);
  for (uint64_t begin = 0; begin < elements; begin += kChunkElements) {
    const uint64_t count = std::min(kChunkElements, elements - begin);
    if (verify) before.Add(update.weight, update.record, begin, count);
    work(begin, count);
  }
  return !verify || Matches(update, before.Finish());
}

}  // namespace

void OptimizerDriver::UpdateParts(const TileUpdate& update, const UpdateScalars& scalars,
                                  uint64_t begin, uint64_t count, size_t& part) {
  const offload::TileLayout& tile = layout_.tile(update.tile);
  const std::span<const kernels::TensorPart> parts = figures_.Parts(update.tile);
  const std::span<kernels::WeightFigures> figures = figures_.Update(update.tile, update.version);
  const auto update_piece = [&](uint64_t from, uint64_t to, std::optional<size_t> of) {
    kernels::OptimizerTile piece =
        PlanesOf(layout_, update.tile, update.weight.data(), update.record.data(),
                 gradients_[offload::Index(update.tile)].data(), from, to - from);
    piece.rounding = scalars.RoundingOf(tile);
    piece.rounding.first_element += from;
    if (!of) {  // padding
      kernels::Update(scalars.Of(tile), piece);
      return;
    }
    std::array<kernels::WeightFigures, kChunkElements / kBlockElements> of_blocks;
    const size_t blocks = (to - from + kBlockElements - 1) / kBlockElements;
    kernels::Update(scalars.Of(tile, parts[*of].tensor), piece, std::span(of_blocks).first(blocks));
    for (size_t i = 0; i < blocks; ++i) figures[*of].Add(of_blocks[i]);
  };
  ForEachPiece(parts, tile.begin, begin, count, part, update_piece);
}

void OptimizerDriver::SumParts(const TileUpdate& update, const UpdateScalars& scalars,
                               uint64_t begin, uint64_t count, size_t& part,
                               kernels::TrustSums*& sums) {
  const offload::TileLayout& tile = layout_.tile(update.tile);
  const auto sum_piece = [&](uint64_t from, uint64_t to, std::optional<size_t> of) {
    if (!of) return;  // padding
    const uint64_t blocks = (to - from + kBlockElements - 1) / kBlockElements;
    kernels::SumForTrust(scalars.Of(tile),
                         PlanesOf(layout_, update.tile, update.weight.data(), update.record.data(),
                                  gradients_[offload::Index(update.tile)].data(), from, to - from),
                         {sums, blocks});
    sums += blocks;
  };
  ForEachPiece(figures_.Parts(update.tile), tile.begin, begin, count, part, sum_piece);
}

bool OptimizerDriver::SumForTrust(const TileUpdate& update, TileHasher& before) {
  PENSTOCK_CHECK(trust_ != nullptr, "a first pass, and nowhere to leave its sums");
  const UpdateScalars scalars = ScalarsFor(update);
  kernels::TrustSums* sums = trust_->OfTile(update.tile).data();
  size_t part = 0;
  return ForEachVerifiedChunk(layout_, update, before, [&](uint64_t begin, uint64_t count) {
    SumParts(update, scalars, begin, count, part, sums);
  });
}

bool OptimizerDriver::Update(const TileUpdate& update, TileHasher& before, TileHasher& after) {
  const UpdateScalars scalars = ScalarsFor(update);
  bool finite = true;
  after.Reset(update.seed_after, layout_.planes(update.tile), layout_.tile(update.tile).elements);
  std::ranges::fill(figures_.Update(update.tile, update.version), kernels::WeightFigures());
  size_t part = 0;
  const auto update_chunk = [&](uint64_t begin, uint64_t count) {
    UpdateParts(update, scalars, begin, count, part);
    finite = WeightsAreFinite(PlanesOf(layout_, update.tile, update.weight.data(),
                                       update.record.data(), nullptr, begin, count)) &&
             finite;
    after.Add(update.weight, update.record, begin, count);
  };
  const bool intact = ForEachVerifiedChunk(layout_, update, before, update_chunk);
  if (!finite) {
    MutexLock lock(mutex_);
    not_finite_ = std::min(not_finite_.value_or(update.tile), update.tile);
  }
  return intact;
}

}  // namespace penstock::zero
