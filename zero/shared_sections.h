// How the ranks share the sections of a module, for gathers and exchanges. Plain values.
#pragma once

#include <cstdint>
#include <vector>

#include "base/units.h"
#include "offload/layout.h"

namespace penstock::zero {

/// Elements of a share of gradients that are exchanged at once, at most: 4 MiB from each rank.
inline constexpr uint64_t kExchangePiece = uint64_t{1} << 20;

/// A section of a module. Rank q has `share` elements of it, from section.begin + q * share on; the
/// last ranks may have fewer, or none.
struct SharedSection {
  bool trained = true;
  offload::Range section;  ///< in the module's flat index
  uint64_t share = 0;      ///< the most elements that a rank has: a multiple of a block
  uint64_t mine = 0;       ///< elements of this rank
  Bytes slot_offset;       ///< of the section, in the module's slot on the device
  Bytes slot_share;        ///< of a share there
};

/// Returns a module's sections in the order of its flat index. Trained ones come first.
std::vector<SharedSection> SharedSectionsOf(const offload::ShardLayout& layout,
                                            offload::ModuleId module);

// These are the same on all ranks.
/// Returns the most trained elements that a rank has of the module.
uint64_t MostTrainedElements(const offload::ShardLayout& layout, offload::ModuleId module);
/// Returns the elements of a buffer for the whole gradient of a module, from which every rank's
/// share can be read at its full length.
uint64_t WholeGradientElements(const offload::ShardLayout& layout, offload::ModuleId module);

}  // namespace penstock::zero
