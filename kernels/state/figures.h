// Figures that passes over gradients and weights compute besides their own work, with which a run
// monitors its numerics.
//
// A figure covers some elements: a block if the pass works by blocks, or a part of one. A tensor
// does not begin on a block, and blocks that tensors share would mix a bias with a matrix. So
// figures are cut at the borders of tensors: those of a tensor are the sum (Add) of its whole
// blocks and of its parts of the two blocks at its ends, in the order of the flat index. A part's
// gradient takes a small pass of its own (PartFigures in kernels/state/block_sums.h); an update is
// made part by part (kernels/state/optimizer.h), which changes no bit of it. TensorParts says which
// parts there are. Made so, the figures of a tensor do not depend on tiles, chunks or threads, but
// for the order in which the sums of its parts are added up.
//
// Plain values. Threads: any.
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "base/dtype.h"

namespace penstock::kernels {

/// Figures of a gradient's elements, as stored.
struct GradientFigures {
  double sum_of_squares = 0;  ///< not finite if an element is not
  float largest = 0;          ///< magnitude, of the finite elements
  uint64_t nonfinite = 0;     ///< number of infinite or NaN elements

  void Add(const GradientFigures& behind) {
    sum_of_squares += behind.sum_of_squares;
    if (behind.largest > largest) largest = behind.largest;
    nonfinite += behind.nonfinite;
  }
};

/// How many elements of a gradient are zero, before it is rounded to fp16 and after.
struct ZeroCounts {
  uint64_t exact = 0;
  uint64_t rounded = 0;

  void Add(const ZeroCounts& behind) {
    exact += behind.exact;
    rounded += behind.rounded;
  }
};

/// Half of the least magnitude that fp16 has is rounded to even: zero.
inline constexpr float kMaxZeroInFloat16 = 0x1p-25F;

/// Figures of updated elements. Weights are the masters, before rounding.
struct WeightFigures {
  double sum_of_squares = 0;         ///< sum over the new weights
  double update_sum_of_squares = 0;  ///< sum over new - old
  /// The largest magnitude of the new weights; infinite if one is, NaN if one is NaN.
  float largest = 0;

  void Add(const WeightFigures& behind) {
    sum_of_squares += behind.sum_of_squares;
    update_sum_of_squares += behind.update_sum_of_squares;
    // Compares bits, in which infinity is above all finite magnitudes, and NaN above infinity.
    if (std::bit_cast<uint32_t>(behind.largest) > std::bit_cast<uint32_t>(largest)) {
      largest = behind.largest;
    }
  }
};

/// The range of a tensor in a flat index.
struct TensorRange {
  uint64_t begin = 0;
  uint64_t end = 0;
};

/// Elements begin … end - 1 of a flat index, all of one tensor.
struct TensorPart {
  size_t tensor = 0;
  uint64_t begin = 0;
  uint64_t end = 0;
  uint64_t elements() const { return end - begin; }
  /// Those that it is in.
  uint64_t blocks() const { return (elements() + kBlockElements - 1) / kBlockElements; }
  /// Whether it is whole blocks; else it lies within one.
  bool whole() const { return begin % kBlockElements == 0 && end % kBlockElements == 0; }
  bool operator==(const TensorPart&) const = default;
};

/// Cuts elements `begin` to `end` - 1 of a flat index: first at the borders of tensors, then what
/// is left of a tensor into the part up to the first border of blocks, its whole blocks together,
/// and the part behind the last border. `tensors` are in order and do not overlap; elements of none
/// (padding) are left out.
std::vector<TensorPart> TensorParts(std::span<const TensorRange> tensors, uint64_t begin,
                                    uint64_t end);

}  // namespace penstock::kernels
