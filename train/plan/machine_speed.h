// How fast a machine does what a step consists of. Nothing: it is not known, and what depends on it
// is not predicted.
//
// Plain values.
#pragma once

#include <optional>

#include "sim/drive.h"
#include "sim/link.h"

namespace penstock::train {

struct MachineSpeed {
  double cores = 1;
  /// Operations a second of the kernels: of layers and of the head.
  std::optional<double> layer_flops;
  std::optional<double> head_flops;
  // Of one thread, in seconds.
  sim::Seconds update_element = 0;
  sim::Seconds norm_element = 0;  ///< block sums
  sim::Seconds copy_byte = 0;     ///< between device and host; on a GPU, of the bus
  sim::Seconds io_byte = 0;       ///< of the processor, for a byte that is read or written
  std::optional<sim::DriveSpeed> drive;
  sim::LinkSpeed link;  ///< between ranks; 0: not known, and exchanges take no time
};

}  // namespace penstock::train
