#include "zero/states/tensor_figures.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "zero/states/value_check.h"

namespace penstock::zero {
namespace {

/// Of the weights after it, an update that destroys them is at least this share (rms).
constexpr double kDestroyingShare = 0.5;

using kernels::TensorPart;
using kernels::TensorRange;
using offload::Index;
using offload::TileId;

/// Where the tensors of a module lie, in the order of the flat index.
std::vector<TensorRange> RangesOf(const offload::ModuleLayout& module) {
  std::vector<TensorRange> ranges;
  for (const size_t i : module.TensorsByOffset()) {
    const offload::TensorLayout& tensor = module.tensors[i];
    ranges.push_back({.begin = tensor.offset, .end = tensor.offset + tensor.elements});
  }
  return ranges;
}

}  // namespace

std::vector<TensorPart> PartsOf(const offload::ModuleLayout& module, uint64_t begin,
                                uint64_t elements) {
  const std::vector<size_t> order = module.TensorsByOffset();
  std::vector<TensorPart> parts = kernels::TensorParts(RangesOf(module), begin, begin + elements);
  for (TensorPart& part : parts) part.tensor = order[part.tensor];
  return parts;
}

std::optional<DestroyedTensor> FirstDestroyed(const offload::ModelLayout& model,
                                              std::span<const kernels::WeightFigures> updates) {
  size_t i = 0;
  for (const offload::ModuleLayout& module : model.modules) {
    for (const offload::TensorLayout& tensor : module.tensors) {
      const kernels::WeightFigures& of = updates[i++];
      if (!std::isfinite(of.largest) || of.largest <= kLargeWeight) continue;
      const double ratio = std::sqrt(of.update_sum_of_squares / of.sum_of_squares);
      if (ratio <= kDestroyingShare) continue;
      return DestroyedTensor{.name = tensor.name, .largest = of.largest, .ratio = ratio};
    }
  }
  return {};
}

Error Destroyed(const DestroyedTensor& tensor, uint64_t step, double lr) {
  return MakeError(
      ErrorCode::kNumeric,
      "step {}: the last update, with learning rate {:g}, has destroyed the weights of "
      "{}: they are as large as {:.3g}{}; they are not committed",
      step, lr, tensor.name, tensor.largest,
      std::isfinite(tensor.ratio)
          ? fmt::format(", and the update is {:.2g} times them (rms)", tensor.ratio)
          : "");
}

TensorFigures::TensorFigures(const offload::ShardLayout& layout) : layout_(layout) {
  std::vector<size_t> first_tensor;
  for (const offload::ModuleLayout& module : layout.model.modules) {
    first_tensor.push_back(tensors_);
    tensors_ += module.tensors.size();
  }
  for (const TileId tile : layout.Tiles()) {
    first_.push_back(parts_.size());
    if (layout.frozen(tile)) continue;
    const offload::TileLayout& place = layout.tile(tile);
    for (TensorPart part : PartsOf(layout.module(tile), place.begin, place.elements)) {
      part.tensor += first_tensor[Index(place.module)];
      parts_.push_back(part);
    }
  }
  first_.push_back(parts_.size());
  gradients_.resize(parts_.size());
  for (auto& updates : updates_) updates.resize(parts_.size());
}

std::span<const TensorPart> TensorFigures::Parts(TileId tile) const {
  const size_t begin = first_[Index(tile)];
  return std::span(parts_).subspan(begin, first_[Index(tile) + 1] - begin);
}

void TensorFigures::TakeGradient(TileId tile, const std::byte* gradient,
                                 const kernels::BlockFigures& blocks) {
  const Bytes element = SizeOf(layout_.GradientDType(tile));
  const uint64_t begin_of_tile = layout_.tile(tile).begin;
  Take(tile, blocks, [&](const TensorPart& part) {
    return kernels::PartFigures(gradient + (element * (part.begin - begin_of_tile)).value,
                                layout_.GradientDType(tile), part.elements());
  });
}

void TensorFigures::TakeGradientEnds(TileId tile, const kernels::BlockFigures& ends,
                                     const kernels::BlockFigures& blocks) {
  size_t next = 0;
  Take(tile, blocks, [&](const TensorPart&) { return ends.Of(next++); });
}

void TensorFigures::Take(
    TileId tile, const kernels::BlockFigures& blocks,
    const std::function<kernels::GradientFigures(const TensorPart& part)>& figures_of) {
  const uint64_t first_block = layout_.tile(tile).begin / kBlockElements;
  kernels::GradientFigures* out = &gradients_[first_[Index(tile)]];
  for (const TensorPart& part : Parts(tile)) {
    kernels::GradientFigures figures;
    if (part.whole()) {
      for (uint64_t i = part.begin / kBlockElements; i < part.end / kBlockElements; ++i) {
        figures.Add(blocks.Of(i - first_block));
      }
    } else {
      figures = figures_of(part);
    }
    *out++ = figures;
  }
}

std::span<kernels::WeightFigures> TensorFigures::Update(TileId tile, uint64_t version) {
  const size_t begin = first_[Index(tile)];
  return std::span(updates_[version % 2]).subspan(begin, first_[Index(tile) + 1] - begin);
}

}  // namespace penstock::zero
