// Block sums and figures of gradients and updates that are on the device, and their way to the
// host.
//
// Passes on the device leave figures of blocks. They are copied to the host behind each pass, and
// so are those elements of gradients that lie in blocks of several tensors: their figures are
// computed there (zero/tensor_figures.h). There is room for one step's gradients and one update.
//
// Threads: one; what it enqueues is done when the streams are.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "device/device.h"
#include "kernels/state/state_operators.h"
#include "offload/layout.h"
#include "zero/gradient_norm.h"
#include "zero/tensor_figures.h"
#include "zero/update_scalars.h"

namespace penstock::zero {

/// What resident training has of figures on the device and, where they arrive, on the host.
struct DeviceFigureBytes {
  Bytes device;
  Bytes host;
};

class DeviceFigures {
 public:
  static DeviceFigureBytes Need(const offload::ShardLayout& layout);
  /// The layout outlives it. Errors: kBudget; kOutOfMemory.
  static Result<std::unique_ptr<DeviceFigures>> Create(const offload::ShardLayout& layout,
                                                       device::Device& device);

  /// Enqueues the passes over a trained tile's gradient, in device memory; tells `norm` (which
  /// outlives them) when its block sums are there.
  void SumGradient(device::Stream& stream, kernels::StateOperators& operators, offload::TileId tile,
                   const std::byte* gradient, GradientNorm& norm);
  /// Enqueues the update of a trained tile, part by part. The bits of the tile are those of one
  /// update.
  void Update(device::Stream& stream, kernels::StateOperators& operators, offload::TileId tile,
              const UpdateScalars& scalars, const kernels::OptimizerTile& planes);
  /// Enqueues the first pass over a trained tile, for rules that take two; takes the place of the
  /// figures of the update. TakeTrust reads what it has left, after the stream has ended.
  void SumForTrust(device::Stream& stream, kernels::StateOperators& operators, offload::TileId tile,
                   const UpdateScalars& scalars, const kernels::OptimizerTile& planes);
  void TakeTrust(offload::TileId tile, std::span<kernels::TrustSums> sums) const;
  /// Returns the figures of this rank's share: of the gradients since the last call, and of the
  /// update, if there was one. The streams of both have been waited for.
  StepFigures Take();
  /// Returns those of the last update, whose stream has been waited for; zeros if there was none.
  std::vector<kernels::WeightFigures> LastUpdate();
  /// Finds, on the device, the first trained tile whose weights are not all finite; the stream has
  /// ended then. Takes the place of the block sums of gradients. Errors: of the stream.
  Result<std::optional<offload::TileId>> FirstNotFinite(
      device::Stream& stream, kernels::StateOperators& operators,
      const std::function<const std::byte*(offload::TileId tile)>& weight_of);

 private:
  /// How much there is of each kind before a tile, or in all.
  struct Place {
    uint64_t blocks = 0;   ///< of gradients
    uint64_t updates = 0;  ///< blocks, whole or not, of the parts that are updated
    Bytes ends;            ///< elements of parts without whole blocks
  };
  /// A tile's figures of blocks, in either memory.
  struct TilePlace {
    double* sums;
    float* largest;
    uint32_t* nonfinite;
    uint32_t* finite;
    kernels::WeightFigures* updates;
  };

  explicit DeviceFigures(const offload::ShardLayout& layout);
  uint64_t Blocks(offload::TileId tile) const {
    return layout_.tile(tile).elements / kBlockElements;
  }
  TilePlace In(std::byte* memory, offload::TileId tile) const;
  std::byte* HostEnds(offload::TileId tile) const;
  kernels::BlockFigures OnHost(offload::TileId tile) const;
  DeviceFigureBytes need() const;
  void CopyEnds(device::Stream& stream, offload::TileId tile, const std::byte* gradient) const;
  void TakeUpdate(offload::TileId tile);

  const offload::ShardLayout& layout_;
  TensorFigures figures_;
  std::vector<Place> places_;  ///< of each tile, and of all
  // Of figures of blocks by tile, then of updates, then a flag for each tile; on the host ends,
  // too.
  device::DeviceBuffer device_;
  device::HostBuffer host_;
  bool updated_ = false;  ///< since the last Take
};

}  // namespace penstock::zero
