// The descriptors of tiles in a state file's head (docs/state_format.md; private to
// state_format.cc). Decoding validates everything.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "offload/layout.h"
#include "offload/state_format.h"

namespace penstock::offload {

/// Whether version 1 can express planes: it names the states of a record, and assumes the rest.
bool HasV1Planes(const ModelLayout& model);

/// `out`: kDescriptorBytes of zeros. Precondition: the version can express the layout.
void EncodeDescriptor(const ShardLayout& layout, TileId tile, const TilePlace& place,
                      uint32_t version, std::span<std::byte> out);
/// Returns the planes that the descriptors of version 1 name beside a weight of this dtype. Errors:
/// kCorruption if a descriptor names others than the first.
Result<Planes> V1PlanesOf(std::span<const std::byte> descriptors, DType weight);
/// Returns the path that each descriptor names. Errors: kCorruption if it is none of `paths`.
Result<std::vector<uint16_t>> PathsOf(std::span<const std::byte> descriptors, uint32_t version,
                                      uint32_t paths);

}  // namespace penstock::offload
