// The caller's memory for the weights of a unit: one range, or a separate one for each tensor.
//
// Plain values; the addresses are of the host or of a device.
#pragma once

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "front/parallel_copy.h"
#include "offload/layout.h"

namespace penstock::front {

class UnitMemory {
 public:
  /// A range with the layout of a slot (offload/layout.h); null: the caller has the weights.
  explicit UnitMemory(std::byte* slot) : slot_(slot) {}
  /// An address for each tensor of the unit.
  explicit UnitMemory(std::vector<std::byte*> tensors) : tensors_(std::move(tensors)) {}

  bool wanted() const { return slot_ != nullptr || !tensors_.empty(); }
  /// Adds where the parts of a tile's weights go. Padding goes to a range alone.
  void AddCopies(const offload::ShardLayout& layout, offload::TileId tile,
                 std::span<const std::byte> weights, std::vector<Copy>& copies) const;

 private:
  std::byte* slot_ = nullptr;
  std::vector<std::byte*> tensors_;
};

}  // namespace penstock::front
