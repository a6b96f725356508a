// The rule and the norm on plain memory, with the bits of a training.
//
// Threads: any.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/result.h"
#include "front/group_scalars.h"
#include "kernels/state/optimizer_tile.h"

namespace penstock::front {

/// Makes update number `t` (from 1) of the elements, by the rule of a configuration's text. Errors:
/// kInvalidArgument: of the texts and scalars; for missing or extra planes; for a rule with two
/// passes, as one of them needs whole tensors.
Status UpdateElements(const std::string& config, const GroupScalars& scalars, uint64_t t,
                      double grad_scale, const kernels::OptimizerTile& elements);

/// Writes the sum of squares of each kBlockElements elements, of which the last block is padded
/// with zeros. Returns whether all are finite.
bool SumBlocks(const void* values, DType dtype, uint64_t count, double* sums);

}  // namespace penstock::front
