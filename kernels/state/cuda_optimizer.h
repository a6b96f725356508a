// The passes over parts of states on the GPU; StateOperators says what is computed.
#pragma once

#include "device/device.h"
#include "kernels/state/optimizer.h"
#include "kernels/state/state_operators.h"

namespace penstock::kernels {

/// Enqueues and returns: one kernel for any number of parts. Planes are aligned to an element.
void CudaUpdate(device::CudaStream& stream, const PartsUpdate& update, const StateParts& parts,
                WeightFigures* of_blocks);
/// The same of the first pass of a rule with a trust ratio.
void CudaSumForTrust(device::CudaStream& stream, const OptimizerScalars& scalars,
                     const StateParts& parts, TrustSums* of_blocks);

}  // namespace penstock::kernels
