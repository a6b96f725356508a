// Where a model's sizes do not suit a GPU's matrix units: sizes that break alignment, and the last
// wave of tiles, which leaves multiprocessors idle.
//
// Pure functions. Threads: any.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sizing/model_shape.h"

namespace penstock::train {

/// Returns a line for each rule that is broken, none if all are kept: h is a multiple of 128, h/TP
/// of 64, and the width of a head of 8. Rules about heads are left out if the shape has none.
std::vector<std::string> QuantizationHints(const ModelShape& shape, uint64_t tensor);

/// The GEMMs of a layer on one GPU.
struct WaveSetting {
  uint64_t tensor = 1;
  uint64_t micro_batch = 1;
  uint64_t sequence = 2048;
  uint64_t multiprocessors = 108;  ///< of an A100; an H200 has 132
};
/// Returns which share of the multiprocessors' time the GEMMs of a layer fill: FLOPs of all of
/// them, over what the tiles of 256 x 128 in whole waves could have computed.
double WaveEfficiency(const ModelShape& shape, const WaveSetting& setting);

}  // namespace penstock::train
