// The layout in a state file's head: the text of modules and tensors, and the descriptors of tiles
// (docs/state_format.md; private to state_format.cc). Decoding trusts nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "offload/layout.h"
#include "offload/state_format.h"

namespace penstock::offload {

/// kCorruption.
Error Corrupt(const std::string& what);

std::string LayoutToJson(const Layout& layout);
/// Adds the modules of a text to `layout`, which has its number of parameters; checks that the
/// tensors have that many elements, names of their own, and places of their own in their modules.
Status ModulesFromJson(const std::string& text, Layout& layout);

/// `out`: kDescriptorBytes of zeros.
void EncodeDescriptor(const Layout& layout, const TileLayout& tile, const TilePlace& place,
                      std::span<std::byte> out);
/// Adds the tiles of all descriptors, and which moments they name, to a layout that has everything
/// else; checks that they cover each module exactly and lie on one of `paths`. The path of each.
Result<std::vector<uint16_t>> TilesFromDescriptors(std::span<const std::byte> bytes, uint32_t paths,
                                                   Layout& layout);

}  // namespace penstock::offload
