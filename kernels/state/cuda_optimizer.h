// The passes over a tile on the GPU; what is computed is stated at StateOperators.
#pragma once

#include "device/device.h"
#include "kernels/state/optimizer.h"

namespace penstock::kernels {

/// Enqueues and returns. The tile is device memory, aligned to an element; so are the figures of
/// its blocks, which are left out where the pointer is null.
void CudaUpdate(device::CudaStream& stream, const OptimizerScalars& scalars,
                const OptimizerTile& tile, WeightFigures* of_blocks);
/// The same of the first pass of a rule with a trust ratio.
void CudaSumForTrust(device::CudaStream& stream, const OptimizerScalars& scalars,
                     const OptimizerTile& tile, TrustSums* of_blocks);

}  // namespace penstock::kernels
