// How gradients leave the device: rounded into a buffer there, from which they are copied while the
// next ones are computed.
//
// The buffer is a ring (zero/plan/staging_ring.h). What is reserved in it together waits at most
// once: for the copies of what lay there before. If the buffer holds a module's gradient, that is
// the whole module, and the wait is for an earlier module, whose copies had the time of a module's
// backward. Otherwise it is pieces of half the buffer, so that rounding one and copying the one
// before overlap.
//
// Each copy of any size costs two events and a change of threads. A rank's tiles lie one behind the
// other in its sums of a module; those that have gradients of one dtype go together. Which ones do
// changes no bit.
#pragma once

#include <cstdint>
#include <vector>

#include "base/dtype.h"
#include "base/units.h"
#include "offload/layout.h"
#include "zero/model.h"

namespace penstock::zero {

/// Is copied at once. At 10 GB/s, 26 microseconds: about what a copy costs besides.
inline constexpr Bytes kGradientBatch = 256_KiB;
/// Does not cut: a batch is all that lies together and has one dtype.
inline constexpr Bytes kWholeModule{UINT64_MAX};

struct GradientBatch {
  offload::IdRange<offload::TileId> tiles;  ///< of one module, all of them trained
  uint64_t begin = 0;                       ///< first element, in this rank's sums of the module
  uint64_t elements = 0;
  DType dtype = DType::kFloat32;

  Bytes size() const { return SizeOf(dtype) * elements; }
};

/// The trained tiles of a module, in order, cut into batches of at most `most` bytes, rounded. A
/// tile that is larger is a batch by itself.
std::vector<GradientBatch> GradientBatches(const offload::ShardLayout& layout,
                                           offload::ModuleId module, Bytes most = kGradientBatch);
/// The tiles of a batch, cut likewise.
std::vector<GradientBatch> CutBatch(const offload::ShardLayout& layout, const GradientBatch& batch,
                                    Bytes most = kGradientBatch);

/// What a batch takes of the staging buffer.
Bytes StagedBytes(const GradientBatch& batch);
/// Batches that are reserved together.
struct StagedBatches {
  std::vector<GradientBatch> batches;
  Bytes size;
};
/// A module's gradient as it goes through a staging buffer of so many bytes: in one part, if it
/// fits.
std::vector<StagedBatches> StageModule(const offload::ShardLayout& layout, offload::ModuleId module,
                                       Bytes staging);

/// The smallest staging buffer: two of the largest batches of all modules.
Bytes LeastGradientStaging(const offload::ShardLayout& layout);
/// The staging buffer with which a module's gradient waits at most once: it holds any of the
/// repeated modules, or of all if none is repeated.
Bytes LayerGradientStaging(const ModelSpec& model, const offload::ShardLayout& layout);

}  // namespace penstock::zero
