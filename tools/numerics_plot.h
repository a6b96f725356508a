// A plot of a run's numbers: loss, norm of the gradient, loss scale and headroom by layer over the
// steps, with its reports.
//
// Pure text generation. Threads: any.
#pragma once

#include <string>

#include "tools/run_numerics.h"

namespace penstock::train {

/// Skipped steps and reports are marked in the panel that they are about, with the report's line
/// under the pointer.
std::string PlotSvg(const RunNumerics& numerics);

}  // namespace penstock::train
