// How gradients leave the device: several small tiles of a module at once.
//
// Each journey costs a launch, two events and a change of threads, whatever its size. A rank's
// tiles lie one behind the other in its sums of a module; those that have gradients of one dtype go
// together, as many as a staging buffer holds. Which ones do changes no bit.
#pragma once

#include <cstdint>
#include <vector>

#include "base/dtype.h"
#include "base/units.h"
#include "offload/layout.h"

namespace penstock::zero {

/// At 10 GB/s, 26 microseconds: about what a journey costs besides.
inline constexpr Bytes kGradientBatch = 256_KiB;

/// Does not cut: a batch is all that lies together and has one dtype.
inline constexpr Bytes kWholeModule{UINT64_MAX};

struct GradientBatch {
  offload::IdRange<offload::TileId> tiles;  ///< of one module, all of them trained
  uint64_t begin = 0;                       ///< first element, in this rank's sums of the module
  uint64_t elements = 0;
  DType dtype = DType::kFloat32;
};

/// The trained tiles of a module, in order, cut into batches of at most `most` bytes, rounded. A
/// tile that is larger is a batch by itself.
std::vector<GradientBatch> GradientBatches(const offload::ShardLayout& layout,
                                           offload::ModuleId module, Bytes most = kGradientBatch);

/// The size of a staging buffer: the largest batch of all modules.
Bytes GradientStagingBytes(const offload::ShardLayout& layout);

}  // namespace penstock::zero
