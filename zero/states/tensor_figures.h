// The figures of a step's gradients and updates by tensor, from the passes over tiles.
//
// Tiles do not keep to tensors: a tile has parts, each of one tensor, whole blocks together
// (kernels/state/figures.h). A pass over a tile leaves the figures of its parts here, from any
// thread; they are combined in the order of the flat index, so that threads change nothing, and
// tiles only the last bits of sums. An update continues under the next step, and the update after
// it may begin with its gradients, so that there are figures of two updates.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "kernels/state/block_sums.h"
#include "kernels/state/figures.h"
#include "offload/layout.h"

namespace penstock::zero {

/// By tensor: in the order of modules, and of the tensors in each.
struct StepFigures {
  std::vector<kernels::GradientFigures> gradients;  ///< as they are stored, with the loss scale
  std::vector<kernels::WeightFigures> updates;      ///< of the update before the step, if it is new
  std::vector<kernels::ZeroCounts> zeros;           ///< of gradients, if the step counts them
};

/// Returns the parts of elements of a module; `tensor` is an index of module.tensors.
std::vector<kernels::TensorPart> PartsOf(const offload::ModuleLayout& module, uint64_t begin,
                                         uint64_t elements);

/// Goes through `count` elements of a tile from `begin` on, in pieces that belong to one part or to
/// none (padding). `parts`: of the tile. `part`: index of the next one; advances as parts are done.
/// Calls `piece(from, to, part)` with elements of the tile and the index of a part.
template <typename Piece>
void ForEachPiece(std::span<const kernels::TensorPart> parts, uint64_t begin_of_tile,
                  uint64_t begin, uint64_t count, size_t& part, Piece piece) {
  const uint64_t end = begin + count;
  while (begin < end) {
    const bool none = part == parts.size() || parts[part].begin - begin_of_tile >= end;
    const uint64_t next = none ? end : parts[part].begin - begin_of_tile;
    if (begin < next) {
      piece(begin, next, std::optional<size_t>());
      begin = next;
      continue;
    }
    const uint64_t end_of_part = parts[part].end - begin_of_tile;
    const uint64_t to = std::min(end, end_of_part);
    piece(begin, to, std::optional(part));
    if (to == end_of_part) ++part;
    begin = to;
  }
}

/// An update that has destroyed its weights: where they are large afterwards because of it.
struct DestroyedTensor {
  std::string name;
  float largest = 0;  ///< magnitude
  double ratio = 0;   ///< rms of the update over rms of the new weights; NaN beyond fp32
};
/// Returns the first tensor whose weights an update has destroyed: they are finite, beyond
/// kLargeWeight, and most of what they are came with it. Weights that were large before, as those
/// of an import may be, are not meant, and neither are weights that are not finite: see NotFinite.
std::optional<DestroyedTensor> FirstDestroyed(const offload::ModelLayout& model,
                                              std::span<const kernels::WeightFigures> updates);
/// Returns the error of a commit of such weights, after step `step`, whose update had learning rate
/// `lr`: kNumeric.
Error Destroyed(const DestroyedTensor& tensor, uint64_t step, double lr);

class TensorFigures {
 public:
  /// The layout outlives the object.
  explicit TensorFigures(const offload::ShardLayout& layout);

  /// The parts of a trained tile, in order; begin and end are elements of the module's flat index,
  /// and `tensor` counts the tensors of all modules.
  std::span<const kernels::TensorPart> Parts(offload::TileId tile) const;
  /// Takes the figures of a tile's gradient from those of its blocks, and from the gradient where a
  /// part has no whole blocks.
  void TakeGradient(offload::TileId tile, const std::byte* gradient,
                    const kernels::BlockFigures& blocks);
  /// The same where `ends` are the figures of those parts, one part behind the other; others may
  /// follow.
  void TakeGradientEnds(offload::TileId tile, const kernels::BlockFigures& ends,
                        const kernels::BlockFigures& blocks);
  /// Returns where the figures of a tile's update go, by part.
  std::span<kernels::WeightFigures> Update(offload::TileId tile, uint64_t version);

  /// Combine what all tiles have left: those of this rank's share.
  std::vector<kernels::GradientFigures> Gradients() const { return Combine(gradients_); }
  std::vector<kernels::WeightFigures> Updates(uint64_t version) const {
    return Combine(updates_[version % 2]);
  }

 private:
  /// `figures_of` returns those of a part without whole blocks; it is called for these, in order.
  void Take(
      offload::TileId tile, const kernels::BlockFigures& blocks,
      const std::function<kernels::GradientFigures(const kernels::TensorPart& part)>& figures_of);
  template <typename Figures>
  std::vector<Figures> Combine(const std::vector<Figures>& of_parts) const {
    std::vector<Figures> of_tensors(tensors_);
    for (size_t i = 0; i < parts_.size(); ++i) of_tensors[parts_[i].tensor].Add(of_parts[i]);
    return of_tensors;
  }

  const offload::ShardLayout& layout_;
  size_t tensors_ = 0;
  std::vector<kernels::TensorPart> parts_;           ///< of all tiles, in their order
  std::vector<size_t> first_;                        ///< of each tile, and the number of all
  std::vector<kernels::GradientFigures> gradients_;  ///< by part
  std::array<std::vector<kernels::WeightFigures>, 2> updates_;  ///< by part, at version modulo 2
};

}  // namespace penstock::zero
