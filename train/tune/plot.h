// The results of `penstock tune` as a picture: three heat maps of speed over block size and queue
// depth, for reading, writing and both, as one SVG without scripts and without external fonts.
//
// Plain text making. Threads: any.
#pragma once

#include <string>

#include "train/tune/table.h"

namespace penstock::train {

/// All maps share one colour scale that starts at 0 GB/s. The ceiling and the recommendation of the
/// report are marked in each.
std::string PlotSvg(const TuneReport& report);

}  // namespace penstock::train
