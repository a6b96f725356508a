// The shapes of layers that operators are tested with.
#pragma once

#include "tests/kernels/layer_operators.h"

namespace penstock::kernels {

/// Odd lengths; a width that no vector divides into whole lines; one of which a GPU's block of
/// threads makes more than one pass.
inline constexpr LayerShapes kLayerShapes[] = {
    {.batch = 1, .sequence = 1, .width = 48, .heads = 1, .hidden = 192, .vocabulary = 257},
    {.batch = 3, .sequence = 7, .width = 45, .heads = 3, .hidden = 101, .vocabulary = 257},
    {.batch = 2, .sequence = 33, .width = 48, .heads = 3, .hidden = 192, .vocabulary = 256},
    {.batch = 1, .sequence = 5, .width = 261, .heads = 9, .hidden = 24, .vocabulary = 11},
};

}  // namespace penstock::kernels
